"""Training: configuration, optimizer and schedule, the loop, and how a trained model is scored."""

from maclaurin.train.config import TrainConfig
from maclaurin.train.loop import fit, loss_nats, mean_loss_nats, task_accuracy
from maclaurin.train.optimizer import learning_rate, make_optimizer

__all__ = [
    "TrainConfig",
    "fit",
    "learning_rate",
    "loss_nats",
    "make_optimizer",
    "mean_loss_nats",
    "task_accuracy",
]
