# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a new world conclude from where each of them stands: pure decisions."""

from typing import List, NamedTuple


class Standing(NamedTuple):
    """Where a rank stands when it comes into a world."""

    has_state: bool  # model and optimizer are those after `steps` steps
    steps: int  # completed steps
    in_step: bool  # it has been given rows of step steps + 1
    reports: int  # completed reports
    text_bytes: int  # length of what it has to tell if it is the source


class Verdict(NamedTuple):
    """The same on all ranks."""

    fresh: bool  # no rank has a state: the training begins (or goes on from a checkpoint)
    furthest: int  # completed steps of the furthest ranks; -1 if fresh
    source: int  # rank whose state and dealing hold
    begun: bool  # step furthest + 1 has been begun: its rows are dealt
    receivers: List[int]  # ranks that need the state
    reports: int  # reports that are done


def conclude(standings):
    """A furthest rank is the source, one in a step before others: its rows are dealt already."""
    able = [rank for rank, s in enumerate(standings) if s.has_state]
    if not able:
        # Rank 0 begins. If a first world was lost before its first step, rows may be dealt already.
        in_step = [rank for rank, s in enumerate(standings) if s.in_step]
        source = (in_step or [0])[0]
        others = [rank for rank in range(len(standings)) if rank != source]
        return Verdict(True, -1, source, bool(in_step), others, standings[source].reports)
    furthest = max(standings[rank].steps for rank in able)
    first = [rank for rank in able if standings[rank].steps == furthest]
    in_step = [rank for rank in first if standings[rank].in_step]
    source = (in_step or first)[0]
    receivers = [rank for rank in range(len(standings)) if rank not in first]
    reports = max(standings[rank].reports for rank in able)
    return Verdict(False, furthest, source, bool(in_step), receivers, reports)
