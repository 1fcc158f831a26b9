# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a page of docs/guide, and how its sample outputs are compared.

A fence's first word is the language; words after it are for the test and are not shown:

    ```bash             commands to type
    ```bash wait        the same, after the job last submitted has ended
    ```bash file=NAME   a file to write
    ```text             what the commands before it print: these lines, in this order, among others
    ```python from=FILE lines of FILE in the repository; also ```cpp

In a sample, digits stand for any number, "…" for anything. `<job>` is the number of the last job.
"""
import dataclasses
import re


@dataclasses.dataclass
class Block:
    language: str
    options: dict
    text: str
    line: int


def blocks(page):
    found, fence = [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        match = re.fullmatch(r"(\s*)```(.*)", line)
        if not match:
            if fence:
                fence[3].append(line[fence[0]:])
        elif fence:
            indent, words, start, lines = fence
            options = dict(word.partition("=")[::2] for word in words[1:])
            found.append(Block(words[0], options, "\n".join(lines) + "\n", start))
            fence = None
        else:
            assert match[2], f"{page}:{number}: a code block without a language"
            fence = (len(match[1]), match[2].split(), number, [])
    assert fence is None, f"{page}: a code block that does not end"
    return found


def line_pattern(sample):
    parts = re.split(r"(\d+|…)", sample)
    return re.compile("".join(
        r"\d+" if part.isdigit() else ".*" if part == "…" else re.escape(part) for part in parts))


def missing_line(sample, output):
    """The first line of `sample` that `output` does not have in its place; None if it has all."""
    lines = iter(output.splitlines())
    for wanted in sample.splitlines():
        pattern = line_pattern(wanted.rstrip())
        if not any(pattern.fullmatch(line.rstrip()) for line in lines):
            return wanted
    return None
