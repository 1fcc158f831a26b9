# SPDX-License-Identifier: Apache-2.0
"""Which rank reads which rows: pure decisions, the same on all ranks, without torch.

An epoch is an *order* of row numbers, a permutation that depends on the seed and the epoch alone. A
step takes the next rows of it, a *deal*; rank r of w takes every w-th of them, beginning at r: its
*share*. So the rows of a step are the same at every world size.

When the world changes in the middle of a step, the step is completed by those who are still there,
each with the share that it had; the rows of the others go to the end of the epoch's order.
"""


def rows_of_step(remaining, batch, world, drop_last):
    """How many of the `remaining` rows of an epoch the next step takes; 0: the epoch is over.

    A tail of fewer rows than ranks joins the step before it, since every rank needs one.
    """
    if remaining < batch:
        return 0 if drop_last else remaining
    rest = remaining - batch
    if not drop_last and 0 < rest < min(world, batch):
        return remaining
    return batch


def steps_of_epoch(remaining, batch, world, drop_last):
    """How many steps `remaining` rows make."""
    if batch <= 0:
        return 0
    if drop_last:
        return remaining // batch
    whole, rest = divmod(remaining, batch)
    if whole and 0 < rest < min(world, batch):
        rest = 0
    return whole + (1 if rest else 0)


class Deal:
    """The rows [low, high) of the epoch's order, dealt to the ranks of a world.

    `generation`, `world`: of the world that dealt it. `alive`: the ranks of that world whose shares
    count; the rows of the others have gone to the end of the order.
    """

    def __init__(self, low, high, world, generation, alive=None):
        self.low, self.high, self.world, self.generation = low, high, world, generation
        self.alive = list(range(world)) if alive is None else list(alive)

    def rows(self):
        return self.high - self.low

    def share_size(self, share):
        if share is None or share not in self.alive:
            return 0
        return max(0, -(-(self.rows() - share) // self.world))

    def expected(self):
        """Rows of all shares that count."""
        if len(self.alive) == self.world:
            return self.rows()
        return sum(self.share_size(share) for share in self.alive)

    def as_json(self):
        return [self.low, self.high, self.world, self.generation, self.alive]


class Dealing:
    """Where an epoch stands. All ranks of a world hold equal ones, apart from `taken`.

    `order_of(epoch)` gives the row numbers of an epoch: anything with a length and slices.
    `batch`: rows of a step over all ranks, or of each rank if `per_rank`.
    """

    def __init__(self, order_of, batch, drop_last=False, per_rank=False, epoch=0):
        self._order_of = order_of
        self.batch, self.drop_last, self.per_rank = batch, drop_last, per_rank
        self.deal = None  # the step in progress
        self.taken = True  # whether this rank has been given its share of it
        self.begin_epoch(epoch)

    def begin_epoch(self, epoch):
        self.epoch = epoch
        self._order = None  # made when it is needed: a restored one may be of another epoch
        self.late = []  # rows at the end: those of ranks that vanished
        self.position = 0
        self.deal, self.taken = None, True

    # --- Reading

    def order(self):
        if self._order is None:
            self._order = self._order_of(self.epoch)
        return self._order

    def length(self):
        return len(self.order()) + len(self.late)

    def rows(self, low, high, step=1):
        """The row numbers at low, low + step, … below high."""
        base = self.order()
        n = len(base)
        found = _listed(base[low : min(high, n) : step]) if low < n else []
        if high > n:
            first = low + len(found) * step
            found += self.late[first - n : high - n : step]
        return found

    def step_rows(self, world):
        return rows_of_step(
            self.length() - self.position, self._step_batch(world), world, self.drop_last
        )

    def steps_left(self, world):
        return steps_of_epoch(
            self.length() - self.position, self._step_batch(world), world, self.drop_last
        )

    def steps(self, world):
        """Of the whole epoch, at this world size."""
        return steps_of_epoch(self.length(), self._step_batch(world), world, self.drop_last)

    def _step_batch(self, world):
        return self.batch * world if self.per_rank else self.batch

    def in_progress(self):
        return self.deal is not None

    # --- Going on

    def begin(self, rank, world, generation):
        """Deals the next step; this rank's rows (none if it has no share), or None at the end."""
        if self.deal is not None and not self.taken:  # begun by the world before
            self.taken = True
            return self.share(self._share)
        size = self.step_rows(world)
        self.complete()
        if size == 0:
            return None
        self.deal = Deal(self.position, self.position + size, world, generation)
        self.position += size
        self.taken = True
        return self.share(rank)

    def share(self, share):
        deal = self.deal
        if share is None or share not in deal.alive:
            return []
        return self.rows(deal.low + share, deal.high, deal.world)

    def complete(self):
        """The step in progress is done."""
        self.deal, self.taken = None, True

    # --- Changes of the world

    def hand_over(self, shares, own, taken):
        """A step in progress goes on in another world.

        `shares`: for each rank of the new world the share it holds (its rank in the world that
        dealt the step) or None; `own`: this rank's; `taken`: it has been given its rows.
        """
        deal = self.deal
        held = sorted({s for s in shares if s is not None and s in deal.alive})
        for share in deal.alive:
            if share not in held:
                self.late += self.rows(deal.low + share, deal.high, deal.world)
        deal.alive = held
        self._share, self.taken = own, taken

    def as_json(self, world):
        """What another rank needs to stand where this one does."""
        late, deal = self.late, self.deal
        if deal is not None and not self.taken:  # handed over, but nobody has begun it here
            late = late + [row for share in deal.alive for row in self.share(share)]
            deal = None
        over = self.position >= len(self.order()) + len(late) or self.step_rows(world) == 0
        if deal is None and over and late is self.late:
            return {"epoch": self.epoch + 1, "position": 0, "late": [], "deal": None}
        return {
            "epoch": self.epoch,
            "position": self.position,
            "late": late,
            "deal": deal.as_json() if deal else None,
        }

    def adopt(self, state):
        """Stands where the rank does whose as_json() this is; hand_over() follows if in a step."""
        if state["epoch"] != self.epoch:
            self.begin_epoch(state["epoch"])
        self.position = state["position"]
        self.late = list(state["late"])
        self.deal = Deal(*state["deal"]) if state["deal"] else None
        self.taken = True


def _listed(rows):
    return rows.tolist() if hasattr(rows, "tolist") else list(rows)
