# SPDX-License-Identifier: Apache-2.0
"""The line that rank 0 prints for each report."""

_TOTALS = ("epochs", "num_epochs", "max_epochs", "n_epochs")


def total_epochs(config):
    """From the train_loop_config, under one of the usual names; None if it does not say."""
    for name in _TOTALS:
        value = (config or {}).get(name) if isinstance(config, dict) else None
        if isinstance(value, int) and value > 0:
            return value
    return None


def duration(seconds):
    seconds = int(seconds + 0.5)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def line(epochs_done, total, metrics, world_size, use_gpu, seconds_per_epoch):
    """"epoch 3 of 5, loss 0.123, 4 GPUs, 12 s left"; what is not known is left out. Pure."""
    parts = []
    if epochs_done is not None:
        parts.append(f"epoch {epochs_done}" + (f" of {total}" if total else ""))
    for name, value in metrics.items():
        if isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif isinstance(value, (int, str)) and name not in ("epoch",):
            parts.append(f"{name} {value}")
        if len(parts) == 5:
            break
    what = "GPU" if use_gpu else "process"
    plural = what + ("" if world_size == 1 else "s" if use_gpu else "es")
    parts.append(f"{world_size} {plural}")
    if total and epochs_done is not None and seconds_per_epoch and epochs_done < total:
        parts.append(f"{duration((total - epochs_done) * seconds_per_epoch)} left")
    return ", ".join(parts)
