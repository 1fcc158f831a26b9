# SPDX-License-Identifier: Apache-2.0
"""The C++ example on the cluster: it learns, resumes, and passes over a torn checkpoint."""
import json
import re

PROGRAM = "/opt/af/build/examples/digits --data /opt/af/examples/data/digits.h5"
EPOCH = re.compile(r"^\[0\] epoch +(\d+)  loss ([\d.]+)  test accuracy ([\d.]+)  world (\d+) ", re.MULTILINE)


def train(cluster, workers, options, nodes=None):
    script = f"#!/bin/bash\n#SBATCH --time=10\naf-launch {PROGRAM} {options}\n"
    where = [f"-N{nodes}"] if nodes else []
    job = cluster.sbatch(script, f"--af-n-workers={workers}", *where)
    ended = cluster.wait_ended(job, timeout=180)
    output = cluster.output(job, ended["StdOut"])
    assert ended["JobState"] == "COMPLETED", output
    return output


def epochs(output):
    return [(int(epoch), float(loss), float(accuracy), int(world))
            for epoch, loss, accuracy, world in EPOCH.findall(output)]


def test_another_world_goes_on_as_if_it_had_been_one_training(cluster):
    whole = epochs(train(cluster, 1, "--epochs 4"))
    assert [line[0] for line in whole] == [0, 1, 2, 3]
    assert whole[3][1] < whole[0][1] / 4

    # Cut after two epochs by hand: the learning rate depends on how many there are to be.
    checkpoints = f"{cluster.cwd}/checkpoints"
    first = epochs(train(cluster, 4, f"--epochs 4 --keep 9 --checkpoints {checkpoints}", nodes=3))
    for step in (69, 92):
        cluster.run("rm", "-r", f"{checkpoints}/step-{step:012}")
    output = train(cluster, 2, f"--epochs 4 --checkpoints {checkpoints}")
    assert f"resumed from {checkpoints}/step-000000000046" in output
    second = epochs(output)
    assert [(line[0], line[3]) for line in first + second] == [
        (0, 4), (1, 4), (2, 4), (3, 4), (2, 2), (3, 2)]
    for lines in (first, second):
        for epoch, loss, accuracy, _ in lines:
            # Equal but for rounding, which Adam lets grow: a wrong share or weight is far outside.
            assert abs(loss - whole[epoch][1]) < 0.02 * whole[epoch][1] + 0.001
            assert abs(accuracy - whole[epoch][2]) < 0.02


def test_a_torn_checkpoint_is_passed_over(cluster):
    checkpoints = f"{cluster.cwd}/checkpoints"
    train(cluster, 2, f"--epochs 2 --checkpoints {checkpoints}")
    torn = f"{checkpoints}/step-000000000046"
    cluster.run("truncate", "-s", "1000", f"{torn}/state.pt")
    output = train(cluster, 2, f"--epochs 2 --checkpoints {checkpoints}")
    assert f"checkpoint {torn} is skipped: state.pt has 1000 bytes instead of" in output
    assert f"resumed from {checkpoints}/step-000000000023" in output
    assert [line[0] for line in epochs(output)] == [1]
    # The torn one was replaced by the epoch trained again.
    output = train(cluster, 1, f"--epochs 2 --checkpoints {checkpoints}")
    assert f"resumed from {torn}" in output
    assert "nothing to do: 2 epochs are done" in output


def test_reports_reach_the_journal(cluster):
    train(cluster, 2, "--epochs 2")
    directory, = cluster.run("ls", "af-runs").stdout.split()
    events = [json.loads(line) for line in cluster.read(f"af-runs/{directory}/events.jsonl").splitlines()]
    reports = [event for event in events if event["event"] == "report"]
    assert [(event["epoch"], event["step"]) for event in reports] == [(0, 23), (1, 46)]
    assert 0 < reports[1]["metrics"]["test_accuracy"] <= 1
    saved = [event for event in events if event["event"] == "checkpoint"]
    assert saved[-1]["path"].endswith(f"af-runs/{directory}/checkpoints/step-000000000046")


def test_bad_input_is_one_line_and_a_failed_job(cluster):
    for options, words in (
            ("--data /work/none.h5", "cannot read /work/none.h5: No such file"),
            ("--data /opt/af/README.md", "/opt/af/README.md: not an HDF5 file"),
            ("--checkpoints /proc/nowhere", "cannot make /proc/nowhere")):
        program = PROGRAM.split()[0] if options.startswith("--data") else PROGRAM
        job = cluster.sbatch(f"#!/bin/bash\naf-launch {program} --epochs 1 {options}\n", "--af-n-workers=1")
        ended = cluster.wait_ended(job, timeout=60)
        output = cluster.output(job, ended["StdOut"])
        assert ended["JobState"] == "FAILED" and ended["ExitCode"] == "1:0", output
        assert len(re.findall("digits: .*" + re.escape(words), output)) >= 1, output
