#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on a text, or trains it further on another; data-parallel, on as many GPUs as are free.

The counterpart of examples/cpp/gpt in Python: the same model, so that each goes on from the other's checkpoint.

    af-launch python gpt.py --storage base
    af-launch python gpt.py --storage tuned --from base --text ../data/instructions.txt
"""

import argparse
import math
import os
import pathlib
import tempfile

import af.train
import af.train.torch
import torch
from af.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from af.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--text", default=HERE.parent / "data" / "stories.txt", help="a file to learn from")
parser.add_argument("--storage", help="directory for checkpoints (default: that of the run)")
parser.add_argument("--from", dest="begin", help="fine-tune: a directory with the checkpoints to begin with")
parser.add_argument("--prompt", default="One ", help="what the sample at the end goes on from")
parser.add_argument("--epochs", type=int, default=16)
args = parser.parse_args()

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
BATCH, RATE, WARMUP = 32, 4e-3, 20


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("in", nn.Linear(WIDTH, 3 * WIDTH))  # "in" is a word of Python's
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        parts = self._modules["in"](x).view(n, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)).masked_fill(later, -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def pieces_of(tokens):
    count = (len(tokens) - 1) // CONTEXT
    return tokens[: count * CONTEXT].view(count, CONTEXT), tokens[1 : count * CONTEXT + 1].view(count, CONTEXT)


def newest(directory):
    return max(pathlib.Path(directory).glob("**/step-*/state.pt"), key=lambda path: path.parent.name)


@torch.no_grad()
def sample(net, prompt, length=200):
    text = list(prompt.encode())
    for _ in range(length):
        logits = net(torch.tensor([text[-CONTEXT:]]).to(next(net.parameters()).device))[0, -1].cpu()
        text.append(int(torch.multinomial((logits / 0.5).softmax(0), 1)))
        if text[-2:] == [10, 10]:
            break
    return bytes(text).decode(errors="replace")


def train_func():
    torch.manual_seed(1)
    tokens = torch.tensor(list(pathlib.Path(args.text).read_bytes()))
    held_out = pieces_of(tokens[-(len(tokens) // 10) :])
    loader = DataLoader(TensorDataset(*pieces_of(tokens[: -(len(tokens) // 10)])), batch_size=BATCH, shuffle=True)
    steps = args.epochs * len(loader)
    net = Model()
    if args.begin:
        net.load_state_dict(torch.load(newest(args.begin))["model"])

    model = af.train.torch.prepare_model(net)
    loader = af.train.torch.prepare_data_loader(loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    loss_fn = nn.CrossEntropyLoss()

    first_epoch = 0
    checkpoint = af.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as path:
            state = torch.load(f"{path}/state.pt")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    step = first_epoch * len(loader)
    for epoch in range(first_epoch, args.epochs):
        for x, target in loader:
            up, down = (step + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))
            for group in optimizer.param_groups:
                group["lr"] = RATE * (up if step < WARMUP else down)
            loss = loss_fn(model(x).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1

        device = next(net.parameters()).device
        with torch.no_grad():
            x, target = (part.to(device) for part in held_out)
            held_out_loss = loss_fn(net(x).flatten(0, 1), target.flatten()).item()
        metrics = {"loss": loss.item(), "held_out_loss": held_out_loss, "perplexity": math.exp(held_out_loss)}
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if af.train.get_context().get_world_rank() == 0:
                print(f"epoch {epoch}  loss {loss.item():.4f}  perplexity {metrics['perplexity']:.2f}")
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, f"{tmp}/state.pt")
                checkpoint = Checkpoint.from_directory(tmp)
            af.train.report(metrics, checkpoint=checkpoint)
    if af.train.get_context().get_world_rank() == 0:
        print("a sample:", sample(net, args.prompt), sep="\n")


trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(
        num_workers=(1, int(os.environ.get("AF_MAX_WORKERS", "1"))), use_gpu=torch.cuda.is_available()
    ),
    run_config=RunConfig(storage_path=args.storage, failure_config=FailureConfig(max_failures=10)),
)
print(trainer.fit().checkpoint.path)
