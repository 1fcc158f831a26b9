# SPDX-License-Identifier: Apache-2.0
"""scripts/check-run: a good run passes, and each kind of bad one is found."""
import json
import pathlib
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check-run"
sys.dont_write_bytecode = True
loader = SourceFileLoader("check_run", str(SCRIPT))
check_run = module_from_spec(spec_from_loader("check_run", loader))
loader.exec_module(check_run)

SAMPLES = 4  # two steps an epoch


def world(generation, size, warm=True, because="a change", attempt=0):
    return {"event": "world_formed", "attempt": attempt, "generation": generation, "size": size,
            "workers": [{"rank": rank} for rank in range(size)], "warm": warm, "because": because}


def event(name, generation, attempt=0, **more):
    return {"event": name, "attempt": attempt, "generation": generation, **more}


def takes(step, generation, rank, size):
    epoch, place = divmod(step - 1, 2)
    return {"takes": step, "generation": generation, "epoch": epoch,
            "samples": [place * 2, place * 2 + 1][rank::size]}


def both(step, generation, rank, size):
    return [takes(step, generation, rank, size), {"done": step, "generation": generation}]


def enter(generation, rank, size, step, attempt=0):
    return {"enter": generation, "rank": rank, "size": size, "step": step, "attempt": attempt}


class Files:
    """A run of two ranks, one of which is lost in step 3, and an epoch and a half."""

    def __init__(self, directory):
        self.directory = directory
        self.events = [world(0, 1, False, "start"), world(1, 2, because="start"), event("world_ended", 1),
                       world(2, 1), event("world_ended", 2), event("run_end", 2, code=0)]
        self.samples = {
            "a": [enter(1, 0, 2, 0), *both(1, 1, 0, 2), *both(2, 1, 0, 2), takes(3, 1, 0, 2), enter(2, 0, 1, 2),
                  *both(3, 2, 0, 1), {"end": 3}],
            # The last reduction was complete for it alone.
            "b": [enter(1, 1, 2, 0), *both(1, 1, 1, 2), *both(2, 1, 1, 2), *both(3, 1, 1, 2)],
        }
        self.logs = {"gen-0/rank-0": "line 1 of a: x\n", "gen-1/rank-0": "line 2 of a: x\nother\n",
                     "gen-1/rank-1": "line 1 of b: x\nline 2 of b: x\n", "gen-2/rank-0": "line 3 of a: x\n"}
        self.left = {"jobs": {}, "processes": {}}
        self.tail = ""

    def write(self):
        def lines(objects):
            return "".join(json.dumps(one) + "\n" for one in objects)
        (self.directory / "samples").mkdir()
        (self.directory / "events.jsonl").write_text(lines(self.events) + self.tail)
        for who, notes in self.samples.items():
            (self.directory / "samples" / f"{who}.jsonl").write_text(lines(notes))
        for name, text in self.logs.items():
            path = self.directory / "logs/attempt-0" / f"{name}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.directory / "left.json").write_text(json.dumps(self.left))


def test_a_good_run(tmp_path):
    files = Files(tmp_path)
    files.write()
    assert check_run.check_run(tmp_path) == []
    assert subprocess.run([SCRIPT, tmp_path]).returncode == 0


def restarted(files):
    """All are started anew and go back to a checkpoint; another attempt goes on behind it."""
    files.events[3]["warm"] = False
    files.samples["a"] = files.samples["a"][:-1]
    files.samples["c"] = [enter(2, 0, 1, 1), *both(2, 2, 0, 1), *both(3, 2, 0, 1)]
    files.samples["a"] = files.samples["a"][:6]
    files.events += [event("requeue", 2), event("attempt_start", 0, attempt=1),
                     world(0, 1, False, "start", attempt=1), event("world_ended", 0, attempt=1),
                     event("run_end", 0, attempt=1)]
    files.samples["d"] = [enter(0, 0, 1, 3, attempt=1), *both(4, 0, 0, 1)]


def test_a_good_run_that_was_restarted(tmp_path):
    files = Files(tmp_path)
    restarted(files)
    files.write()
    assert check_run.check_run(tmp_path) == []


def change(path, value):
    def do(files):
        target = files
        for key in path[:-1]:
            target = getattr(target, key) if isinstance(key, str) and hasattr(target, key) else target[key]
        if isinstance(path[-1], str) and hasattr(target, path[-1]):
            setattr(target, path[-1], value)
        else:
            target[path[-1]] = value
    return do


BAD = {
    "while world 1 goes on": lambda files: files.events.pop(2),
    "is formed after world 2": lambda files: files.events.insert(4, event("world_ended", 2)) or
    files.events.insert(5, world(2, 1)),
    "2 ranks and 1 workers": lambda files: files.events[1]["workers"].pop(),
    "has ended that was not there": lambda files: files.events.insert(3, event("world_ended", 1)),
    "worker_lost behind run_end": lambda files: files.events.append(event("worker_lost", 2)),
    "no run_end": lambda files: files.events.pop(),
    "run_end while world 2 goes on": lambda files: files.events.pop(4),
    "no JSON": change(["tail"], "oops\n"),
    "the last line has no end": change(["tail"], '{"event": '),
    "do not agree: steps [0, 1]": change(["samples", "b", 0], enter(1, 1, 2, 1)),
    "do not agree: steps [0], sizes [2], ranks [0, 0]": change(["samples", "b", 0], enter(1, 0, 2, 0)),
    "but a has completed step 2": change(["samples", "a", 6], enter(2, 0, 1, 1)),
    "behind step 4, which nobody has completed": change(["samples", "a", 6], enter(2, 0, 1, 4)),
    "completed with 1 of 2 ranks": lambda files: files.samples["b"].pop(1),
    "is completed a second time": lambda files: files.samples["a"].extend(both(2, 2, 0, 1)),
    "takes step 3 twice": lambda files: files.samples["a"].insert(7, takes(3, 2, 0, 1)),
    "epoch 0: 1 samples more than once, the first is 0": change(["samples", "b", 1, "samples"], [0]),
    "epoch 0: 1 samples skipped, the first is 1": change(["samples", "b", 1, "samples"], [0]),
    "step 1 was never completed": lambda files: [files.samples[who].__delitem__(slice(1, 3)) for who in "ab"],
    "a: line 2 is lost (1 in all, of 3)": change(["logs", "gen-1/rank-0"], "other\n"),
    "a: lines from 3 to 3 are lost": change(["logs", "gen-2/rank-0"], ""),
    "b: a line is there twice": change(["logs", "gen-1/rank-1"], "line 1 of b: x\nline 1 of b: x\n"),
    "job 7 is still RUNNING": change(["left", "jobs"], {"7": "RUNNING"}),
    "process 12 is there": change(["left", "processes"], {"12": "python"}),
}


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_run(tmp_path, problem):
    files = Files(tmp_path)
    BAD[problem](files)
    files.write()
    found = check_run.check_run(tmp_path)
    assert any(problem in one for one in found), found
    done = subprocess.run([SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 1 and problem in done.stdout


def test_a_run_that_was_cut_short(tmp_path):
    files = Files(tmp_path)
    del files.events[3:]
    files.tail = '{"event": '
    files.write()
    assert check_run.check_run(tmp_path, cut_short=True) == []


def test_no_run_at_all(tmp_path):
    done = subprocess.run([SCRIPT, tmp_path], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "has no events.jsonl" in done.stderr
