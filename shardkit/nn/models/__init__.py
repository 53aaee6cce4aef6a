"""The models that come with shardkit, each with its own loss.

Any Module of a user is sharded in the same way.
"""

from typing import TYPE_CHECKING

from ...public import public_names

if TYPE_CHECKING:
    from .fno import FNO as FNO
    from .gpt import GPT as GPT
    from .lstm import LSTMModel
    from .message_passing import MessagePassing as MessagePassing
    from .mlp import MLP as MLP
    from .resnet import ResNet as ResNet
    from .unet import UNet as UNet
    from .vit import ViT as ViT

    LSTM = LSTMModel
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "fno": "FNO",
            "gpt": "GPT",
            "lstm": "LSTM=LSTMModel",
            "message_passing": "MessagePassing",
            "mlp": "MLP",
            "resnet": "ResNet",
            "unet": "UNet",
            "vit": "ViT",
        },
    )
