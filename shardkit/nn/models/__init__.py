"""The models that come with shardkit, each with its own loss.

Any Module of a user is sharded in the same way. An argument that means nothing, and sizes that do
not fit together, raise ConfigurationError, which is a ValueError.
"""

from ...public import public_names

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
