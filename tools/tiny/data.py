"""Packs endless generated conversations into flat rows of N tokens, in worker processes."""
import gzip
import json
import random

import numpy as np
import torch
from tokenizers import Tokenizer

from dialog import render
from gen_text import conversation, set_prose

LONGEST = 4096
ENDOFTEXT = 4032


def encode(tokenizer, c):
    """-> ids and, for each, whether the model must have predicted it."""
    segments = [(c["text"] + "<|endoftext|>", True)] if "text" in c else render(c)
    ids, learn = [], []
    for (_, flag), e in zip(segments, tokenizer.encode_batch_fast([t for t, _ in segments], add_special_tokens=False)):
        ids += e.ids
        learn += [flag] * len(e.ids)
    return ids[:LONGEST], learn[:LONGEST]


class Packed(torch.utils.data.IterableDataset):
    """Every sequence starts at a multiple of 64, the chunk of the delta rule (filled up with <|endoftext|>).

    Yields (ids int32 [n], targets int32 [n] with -1 where nothing is learnt, cu int32 [s + 1], longest)."""

    def __init__(self, prose, tokenizer, n, seed):
        self.prose, self.tokenizer, self.n, self.seed = prose, tokenizer, n, seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        torch.set_num_threads(1)
        rng = random.Random(self.seed * 1000 + (worker.id if worker else 0))
        tokenizer = Tokenizer.from_file(self.tokenizer)
        with gzip.open(self.prose, "rt", encoding="utf-8") as f:
            set_prose(json.load(f), False)
        waiting = None
        while True:
            ids, targets, cu = [], [], [0]
            while True:
                i, flags = waiting or encode(tokenizer, conversation(rng))
                waiting = None
                if len(ids) + len(i) > self.n:
                    waiting = (i, flags)
                    break
                ids += i
                targets += [t if f else -1 for t, f in zip(i[1:], flags[1:])] + [-1]
                fill = -len(ids) % 64
                ids += [ENDOFTEXT] * fill
                targets += [-1] * fill
                cu.append(len(ids))
            if len(ids) < self.n:
                pad = self.n - len(ids)
                ids += [ENDOFTEXT] * pad
                targets += [-1] * pad
                cu.append(self.n)
            yield (torch.from_numpy(np.array(ids, np.int32)), torch.from_numpy(np.array(targets, np.int32)),
                   torch.from_numpy(np.array(cu, np.int32)), int(np.diff(cu).max()))


def loader(prose, tokenizer, n, seed, workers):
    return torch.utils.data.DataLoader(Packed(prose, tokenizer, n, seed), batch_size=None, num_workers=workers,
                                       prefetch_factor=4 if workers else None, pin_memory=torch.cuda.is_available())
