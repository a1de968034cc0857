"""gTopk: a tree of pairwise merges, each of which keeps the k largest sums; then the root's go to everyone.

Works for every number of ranks: a rank without a partner in a round waits for the next. 4k log2(P) words.
"""

import torch

from algorithms import Algorithm
from selection import largest
from sparse import Sparse


class GTopk(Algorithm):
    def reduce(self, acc):
        mine = self.chooser.choose(acc)
        merged, dropped = self.merge_up_the_tree(mine)
        sums = self.broadcast(merged)
        # An entry that did not reach the root stays, whole, with the ranks that chose it. One that did may still have
        # lost a part in another branch of the tree: that part goes to the residual of the rank that dropped it.
        return self.sparse_reduction(
            sums,
            mine,
            delivered=self.ops.common(mine.indices, sums.indices),
            returned=self.dropped_parts_of(sums, dropped),
        )

    def merge_up_the_tree(self, mine):
        """Returns what this rank held last, and the sums that its merges dropped."""
        rank, size = self.comm.rank, self.comm.size
        merged, dropped, distance = mine, [], 1
        while distance < size:
            if rank % (2 * distance):
                self.send(merged, rank - distance)
                break
            if rank + distance < size:
                arrived = self.receive(rank + distance, mine.values.device)
                both = Sparse(*(torch.cat(pair) for pair in zip(merged, arrived, strict=True)))
                sums = self.ops.sum_lists(both, [merged.count, arrived.count], 0, self.n)
                merged = largest(self.ops, sums, self.k)
                dropped.append((sums, merged))
            distance *= 2
        return merged, dropped

    def dropped_parts_of(self, sums, merges):
        """For each merge here: what it dropped of the indices that the root's sums hold."""
        parts = []
        for before, after in merges:
            in_result = self.ops.common(before.indices, sums.indices)
            lost = in_result[~torch.isin(in_result, after.indices, assume_unique=True)]
            parts.append(Sparse(lost, before.values[torch.searchsorted(before.indices, lost)]))
        return parts

    def send(self, entries, destination):
        self.comm.send(torch.tensor([entries.count]), destination)
        self.comm.send(entries.indices, destination)
        self.comm.send(entries.values, destination)

    def receive(self, source, device):
        count = int(self.comm.receive(1, torch.int64, source))
        return Sparse(
            self.comm.receive(count, torch.int32, source, device),
            self.comm.receive(count, torch.float32, source, device),
        )

    def broadcast(self, root_entries):
        count = torch.tensor([root_entries.count])
        self.comm.bcast(count)
        if self.comm.rank:
            root_entries = Sparse(*(part.new_empty(int(count)) for part in root_entries))
        for part in root_entries:
            self.comm.bcast(part)
        return root_entries
