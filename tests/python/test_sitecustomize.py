# SPDX-License-Identifier: Apache-2.0
"""python/sitecustomize.py hides nobody's own."""
import os
import pathlib
import subprocess
import sys

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "python"


def python(code, *path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AF_", "PYTHON"))}
    environment["PYTHONPATH"] = ":".join(map(str, path))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True)


def write(folder, text):
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return folder


def test_the_one_behind_it_has_its_turn(tmp_path):
    theirs = write(tmp_path / "theirs", "import sys; sys.path.append('/added'); print('theirs', __file__)")
    done = python("import sys, sitecustomize; print(sys.path[1:3], sys.path[-1]); print(sitecustomize.__file__)",
                  CLIENT, theirs)
    file = theirs / "sitecustomize.py"
    assert done.stdout.splitlines() == [f"theirs {file}", f"{[str(CLIENT), str(theirs)]} /added", str(file)], done.stderr
    assert done.stderr == ""


def test_one_before_it_is_left_alone(tmp_path):
    theirs = write(tmp_path / "theirs", "print('theirs')")
    done = python("import sitecustomize", theirs, CLIENT)
    assert (done.stdout, done.stderr) == ("theirs\n", "")


def test_their_error_is_told_as_if_it_were_alone(tmp_path):
    theirs = write(tmp_path / "theirs", "import no_such_module")
    told = [python("import sys; print(len(sys.path))", *path) for path in ([theirs], [CLIENT, theirs])]
    assert "no_such_module" in told[0].stderr
    assert told[1].stderr == told[0].stderr
    assert int(told[1].stdout) == int(told[0].stdout) + 1


def test_alone_it_says_nothing_and_loads_nothing():
    bare, done = (python("import sys; print(*sys.modules)", *path) for path in ([], [CLIENT]))
    assert done.stderr == ""
    assert set(done.stdout.split()) - set(bare.stdout.split()) <= {"sitecustomize", "atexit", "apport_python_hook"}
