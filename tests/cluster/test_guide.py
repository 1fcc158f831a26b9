# SPDX-License-Identifier: Apache-2.0
"""Types the commands of docs/guide into the sandbox, page by page, and reads what they print."""
import re

import pytest

from guide_page import blocks, missing_line
from sandbox import REPO

PAGES = [page for page in sorted((REPO / "docs/guide").glob("*.md")) if "```bash" in page.read_text()]

# A failing command ends a block, as a person would stop there.
LOGIN_SHELL = """
export PATH=/opt/af/build/bin:$PATH
set -eo pipefail
{commands}
echo "now in $PWD"
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(cluster, page):
    # A person's shell: its directory stays from block to block. The page makes its own below
    # /work/users/ada; the fixture's is only where the shell starts.
    cwd, output, job = cluster.cwd, "", None
    for block in blocks(page):
        where = f"{page.relative_to(REPO)}:{block.line}"
        text = block.text.replace("<job>", str(job))
        if block.language == "text":
            missing = missing_line(block.text, output)
            assert missing is None, f"{where}: no line '{missing}' in:\n{output}"
        elif block.language in ("python", "cpp"):
            source = (REPO / block.options["from"]).read_text()
            lines = [line.strip() for line in source.splitlines()]
            for line in block.text.splitlines():
                assert line.strip() in lines, f"{where}: not in {block.options['from']}: {line}"
        elif "file" in block.options:
            cluster.write(f"{cwd}/{block.options['file']}", text)
        else:
            if "wait" in block.options and job:
                cluster.wait_ended(job, timeout=120)
            done = cluster.run("bash", "-c", LOGIN_SHELL.format(commands=text), cwd=cwd, check=False,
                               timeout=120)
            assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{text}\n{done.stdout}{done.stderr}"
            output, _, cwd = done.stdout.rpartition("now in ")
            cwd = cwd.strip()
            output += done.stderr
            for match in re.finditer(r"Submitted batch job (\d+)", output):
                job = int(match[1])


@pytest.mark.parametrize("sample, output, missing", [
    ("epoch 0  loss 0.35\n", "noise\nepoch 12  loss 1.2\n", None),
    ("a\nb\n", "b\na\n", "b"),
    ("done\n", "not done\n", "done"),
    ("4 ranks on …\n", "4 ranks on 2 nodes, gloo\n", None),
    ("4 ranks on …\n", "no ranks\n", "4 ranks on …"),
    ("a.c\n", "abc\n", "a.c"),
])
def test_samples_are_compared(sample, output, missing):
    assert missing_line(sample, output) == missing
