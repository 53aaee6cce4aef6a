# Written by packaging/stubs.py, from the table in __init__.py.
from .fno import FNO as FNO
from .gpt import GPT as GPT
from .lstm import LSTMModel
from .message_passing import MessagePassing as MessagePassing
from .mlp import MLP as MLP
from .resnet import ResNet as ResNet
from .unet import UNet as UNet
from .vit import ViT as ViT

LSTM = LSTMModel
