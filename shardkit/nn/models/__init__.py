"""The models that come with shardkit, each with its own loss.

Any Module of a user is sharded in the same way.
"""

from .fno import FNO
from .gpt import GPT
from .lstm import LSTMModel as LSTM
from .message_passing import MessagePassing
from .mlp import MLP
from .resnet import ResNet
from .unet import UNet
from .vit import ViT

__all__ = ["FNO", "GPT", "LSTM", "MLP", "MessagePassing", "ResNet", "UNet", "ViT"]
