"""The mathematics of a model on one process: tensors, operations, modules, losses, models.

It knows nothing of ranks.
"""

from typing import TYPE_CHECKING

from . import methods, operators, ops  # two of them: what they give to Tensor
from ..public import public_names

if TYPE_CHECKING:
    from . import (
        init as init,
        models as models,
        ops as ops,
    )
    from .autograd import (
        Tensor as Tensor,
        backward_inputs as backward_inputs,
        enable_grad as enable_grad,
        is_grad_enabled as is_grad_enabled,
        no_grad as no_grad,
        record as record,
    )
    from .buffer import (
        Buffer as Buffer,
    )
    from .context import (
        ForwardContext as ForwardContext,
        current_context as current_context,
        forward_context as forward_context,
    )
    from .derivative import (
        grad as grad,
    )
    from .features import (
        InputFeatures as InputFeatures,
        input_features as input_features,
    )
    from .layers.activation import (
        ELU as ELU,
        GELU as GELU,
        Flatten as Flatten,
        Hardtanh as Hardtanh,
        Identity as Identity,
        LeakyReLU as LeakyReLU,
        LogSoftmax as LogSoftmax,
        Mish as Mish,
        ReLU as ReLU,
        Sigmoid as Sigmoid,
        SiLU as SiLU,
        Softmax as Softmax,
        Softplus as Softplus,
        Tanh as Tanh,
    )
    from .layers.attention import (
        MultiheadAttention as MultiheadAttention,
        RelativePositionBias as RelativePositionBias,
        TransformerEncoderLayer as TransformerEncoderLayer,
    )
    from .layers.basic import (
        Dropout as Dropout,
        Embedding as Embedding,
        LayerNorm as LayerNorm,
        Linear as Linear,
        RMSNorm as RMSNorm,
        Sequential as Sequential,
    )
    from .layers.convolution import (
        Conv1d as Conv1d,
        Conv2d as Conv2d,
        Conv3d as Conv3d,
        ConvTranspose1d as ConvTranspose1d,
        ConvTranspose2d as ConvTranspose2d,
        ConvTranspose3d as ConvTranspose3d,
    )
    from .layers.derivatives import (
        Derivatives as Derivatives,
    )
    from .layers.embedding import (
        EmbeddingBag as EmbeddingBag,
    )
    from .layers.normalization import (
        BatchNorm1d as BatchNorm1d,
        BatchNorm2d as BatchNorm2d,
        BatchNorm3d as BatchNorm3d,
        GroupNorm as GroupNorm,
        InstanceNorm1d as InstanceNorm1d,
        InstanceNorm2d as InstanceNorm2d,
        InstanceNorm3d as InstanceNorm3d,
    )
    from .layers.pooling import (
        AdaptiveAvgPool1d as AdaptiveAvgPool1d,
        AdaptiveAvgPool2d as AdaptiveAvgPool2d,
        AdaptiveAvgPool3d as AdaptiveAvgPool3d,
        AdaptiveMaxPool1d as AdaptiveMaxPool1d,
        AdaptiveMaxPool2d as AdaptiveMaxPool2d,
        AdaptiveMaxPool3d as AdaptiveMaxPool3d,
        AvgPool1d as AvgPool1d,
        AvgPool2d as AvgPool2d,
        AvgPool3d as AvgPool3d,
        MaxPool1d as MaxPool1d,
        MaxPool2d as MaxPool2d,
        MaxPool3d as MaxPool3d,
    )
    from .layers.recurrent import (
        GRU as GRU,
        LSTM as LSTM,
    )
    from .layers.resampling import (
        Upsample as Upsample,
    )
    from .layers.spectral import (
        SpectralConv as SpectralConv,
    )
    from .lora import (
        LoRALinear as LoRALinear,
        apply_lora as apply_lora,
        merge_lora as merge_lora,
    )
    from .loss import (
        BinaryCrossEntropy as BinaryCrossEntropy,
        CrossEntropy as CrossEntropy,
        Loss as Loss,
        MeanSquaredError as MeanSquaredError,
        Weighted as Weighted,
        as_loss as as_loss,
    )
    from .losses import (
        BCEWithLogitsLoss as BCEWithLogitsLoss,
        CosineEmbeddingLoss as CosineEmbeddingLoss,
        CrossEntropyLoss as CrossEntropyLoss,
        GaussianNLLLoss as GaussianNLLLoss,
        HuberLoss as HuberLoss,
        KLDivLoss as KLDivLoss,
        L1Loss as L1Loss,
        MSELoss as MSELoss,
        NLLLoss as NLLLoss,
        RelativeL2Loss as RelativeL2Loss,
        SmoothL1Loss as SmoothL1Loss,
    )
    from .module import (
        Module as Module,
        ModuleList as ModuleList,
        Parameter as Parameter,
    )
    from .transformer import (
        FeedForward as FeedForward,
        GatedFeedForward as GatedFeedForward,
        SelfAttention as SelfAttention,
        TransformerBlock as TransformerBlock,
    )
    from .trees import (
        as_tensors as as_tensors,
    )
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            ".": "init models ops",
            "autograd": "Tensor backward_inputs enable_grad is_grad_enabled no_grad record",
            "buffer": "Buffer",
            "context": "ForwardContext current_context forward_context",
            "derivative": "grad",
            "features": "InputFeatures input_features",
            "layers.activation": (
                "ELU Flatten GELU Hardtanh Identity LeakyReLU LogSoftmax Mish ReLU SiLU Sigmoid "
                "Softmax Softplus Tanh"
            ),
            "layers.attention": "MultiheadAttention RelativePositionBias TransformerEncoderLayer",
            "layers.basic": "Dropout Embedding LayerNorm Linear RMSNorm Sequential",
            "layers.convolution": (
                "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d"
            ),
            "layers.derivatives": "Derivatives",
            "layers.embedding": "EmbeddingBag",
            "layers.normalization": (
                "BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm InstanceNorm1d InstanceNorm2d "
                "InstanceNorm3d"
            ),
            "layers.pooling": (
                "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d "
                "AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d MaxPool1d "
                "MaxPool2d MaxPool3d"
            ),
            "layers.recurrent": "GRU LSTM",
            "layers.resampling": "Upsample",
            "layers.spectral": "SpectralConv",
            "lora": "LoRALinear apply_lora merge_lora",
            "loss": "BinaryCrossEntropy CrossEntropy Loss MeanSquaredError Weighted as_loss",
            "losses": (
                "BCEWithLogitsLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss "
                "HuberLoss KLDivLoss L1Loss MSELoss NLLLoss RelativeL2Loss SmoothL1Loss"
            ),
            "module": "Module ModuleList Parameter",
            "transformer": "FeedForward GatedFeedForward SelfAttention TransformerBlock",
            "trees": "as_tensors",
        },
    )
