"""How long does masking take? `python benchmarks/masks_speed.py [--words N] [--partners N …] [--repeats N]`.

One thread. Meeting the partners (signatures, key agreements, roots) happens once in a run, masking once in a slot. Each
number is the median of the repeats. docs/design.md has the result.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from prifedsync.local.masks import Peer, Slot, new_identity, public_identity
from prifedsync.local.words import summed


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def median_ms(times: list[float]) -> float:
    return 1000 * statistics.median(times)


def measured(partners: int, words: int, repeats: int) -> tuple[float, float, float]:
    """Milliseconds to meet all partners, to mask one message, and to add all messages up at the server."""
    identities = {f"client {number:05}": new_identity() for number in range(partners + 1)}
    pinned = {name: public_identity(identity) for name, identity in identities.items()}
    name, *others = identities
    introductions = [Peer(other, identities[other], b"run", pinned, 2).introduction for other in others]
    first = [Peer(name, identities[name], b"run", pinned, 2) for _ in range(repeats)]
    meeting = [seconds(lambda peer=peer: peer.meet(introductions)) for peer in first]
    values = np.random.default_rng(0).integers(-(2**20), 2**20, words)
    slots = [Slot(b"plan", round, 0, tuple(identities)) for round in range(repeats)]
    masking = [seconds(lambda slot=slot: first[0].masked(slot, values)) for slot in slots]
    message = first[0].masked(slots[-1], values)
    adding = [seconds(lambda: summed([message] * (partners + 1))) for _ in range(repeats)]
    return median_ms(meeting), median_ms(masking), median_ms(adding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=1_200_000)
    parser.add_argument("--partners", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.words:,} words, milliseconds")
    print("partners | meet, once in a run | mask, once in a slot | of which a partner | add up at the server")
    for partners in options.partners:
        meet, mask, add = measured(partners, options.words, options.repeats)
        print(f"{partners} | {meet:.1f} | {mask:.1f} | {mask / partners:.2f} | {add:.1f}")


if __name__ == "__main__":
    main()
