"""Collectives on a mesh or torus of chips: the seconds that their links need at best.

Chips lie along k axes of d₁, …, d_k chips, N = d₁·…·d_k in all, and each has a link to its neighbours along
every axis, of b bytes/s one way and as many the other way at the same time. An axis that wraps around is a
ring: a link joins its ends. One that does not is a line, whose two end chips have one link along it.

**Along one axis** a reduce-scatter of s bytes sends (d−1)/d·s out of an end chip: on a line all of it over
one link, on a ring half over each of two. With c links of an end chip (line 1, ring 2) it takes
(d−1)/d·s/(c·b).

**Along all axes** the payload is cut in shares. Each is reduce-scattered along one axis after the other, and
has 1/d of its bytes left after an axis of d; shares begin with different axes, in pieces small enough that no
axis waits for another, so that all are busy at once. In whatever order a share takes the axes, it sends
(N−1)/N of its bytes over the links of a corner chip, of which there are C = Σ cᵢ (an axis of one chip has
none). With shares of such sizes that all axes are done together, which there are for every shape that slices
come in,

    reduce-scatter of S bytes   (N−1)/N · S/(C·b)
    all-gather of S bytes       the same: it is a reduce-scatter backwards
    all-reduce of S bytes       one after the other, 2(N−1)/N · S/(C·b)

With one axis that is a ring, the last is the well-known 2(N−1)/N·S/B, where B = 2b goes out of a chip.

**These are least times.** No reduce-scatter and no all-gather is faster: a corner chip sends (N−1)/N·S in the
one and receives it in the other. No all-reduce is faster where all axes wrap around. On lines, one that sums
on the way to one end and sends results back meanwhile would take down to half of these two halves; it is not
what is counted here. Not in them: additions, copies in memory, other traffic on the links, compute that is
waited for, what two devices of a chip give each other, padding of payloads that do not divide, and latency.
Twisted tori are counted as plain ones.

Source:
    The bound: Chan et al. 2007, Collective communication: theory, practice, and experience; Patarasuk and
    Yuan 2009, Bandwidth optimal all-reduce algorithms. Along the axes of a TPU pod: Kumar et al. 2019, Scale
    MLPerf-0.6 models on Google TPU-v3 Pods, arXiv:1909.09756.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """Chips along axes, some of which may wrap around.

    Attributes:
        dims: chips along each axis.
        wrapped: of each axis, whether a link joins its ends.
        link_bytes_per_s: b, of one link, one way.
    """

    dims: tuple[int, ...]
    wrapped: tuple[bool, ...]
    link_bytes_per_s: float

    @property
    def n_chips(self) -> int:
        """N, chips in all."""
        return math.prod(self.dims)

    @property
    def links_in_use(self) -> int:
        """C, links of the chip that has the fewest."""
        return sum(1 + wraps for length, wraps in self._axes if length > 1)

    def reduce_scatter_s(self, n_bytes: float) -> float:
        """Seconds until each chip has the sum of its share.

        Args:
            n_bytes: of the whole payload, which every chip has.
        """
        n = self.n_chips
        if n == 1 or not n_bytes:
            return 0.0
        return (n - 1) / n * n_bytes / (self.links_in_use * self.link_bytes_per_s)

    def all_gather_s(self, n_bytes: float) -> float:
        """Seconds until each chip has the shares of all: it is a reduce-scatter backwards.

        Args:
            n_bytes: of all shares together.
        """
        return self.reduce_scatter_s(n_bytes)

    def all_reduce_s(self, n_bytes: float) -> float:
        """Seconds until each chip has the sum: a reduce-scatter, and an all-gather after it."""
        return 2 * self.reduce_scatter_s(n_bytes)

    @property
    def _axes(self) -> tuple[tuple[int, bool], ...]:
        return tuple(zip(self.dims, self.wrapped, strict=True))
