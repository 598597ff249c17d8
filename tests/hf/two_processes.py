"""python -m tests.hf.two_processes FOLDER: gradients under DDP and FSDP2, half a batch for each process.

The processes are forks of one that has imported everything and computed nothing: importing twice more would take longer
than all they do.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.hf.family import pictures
from tests.tiny import tiny_model

BATCH = 4


def everything():
    """The model, and the batch, that every process begins with."""
    torch.manual_seed(0)
    return tiny_model(attention="l2").train(), pictures(BATCH), torch.arange(BATCH)


def gradients_of(wrap=lambda model: None, part=slice(None)):
    """The gradients after one backward pass, by name, of the parameters as they are before they are wrapped."""
    model, images, labels = everything()
    wrapped = wrap(model) or model
    wrapped(images[part], labels=labels[part]).loss.backward()
    return {key: integer(each.grad) for key, each in model.named_parameters()}


def integer(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def sharded(model):
    """FSDP2 as Accelerate does it: each of the modules that may not be split, and then the rest."""
    names = set(model._no_split_modules)
    inner = [module for module in model.modules() if type(module).__name__ in names]
    assert inner, names
    for module in inner:
        fully_shard(module)
    fully_shard(model)


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    part = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    for name, wrap in (("ddp", DistributedDataParallel), ("fsdp2", sharded)):
        gradients = gradients_of(wrap, part)
        if rank == 0:
            torch.save(gradients, Path(folder) / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[1],), nprocs=2, start_method="fork")
