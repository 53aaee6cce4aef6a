# Written by packaging/stubs.py, from the table in __init__.py.
from . import fft as fft
from .activation import (
    bias_gelu as bias_gelu,
    erf as erf,
    erf_gelu as erf_gelu,
    gelu as gelu,
    log_softmax as log_softmax,
    relu as relu,
    sigmoid as sigmoid,
    silu as silu,
    softmax as softmax,
    swiglu as swiglu,
    tanh as tanh,
)
from .arrangement import (
    chunk as chunk,
    diagonal as diagonal,
    flatten as flatten,
    flip as flip,
    repeat as repeat,
    repeat_interleave as repeat_interleave,
    roll as roll,
    stack as stack,
    tile as tile,
    tril as tril,
    triu as triu,
)
from .attention import (
    attention_weights as attention_weights,
    causal_attention as causal_attention,
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from .channel_norm import (
    batch_norm as batch_norm,
    group_norm as group_norm,
    instance_norm as instance_norm,
)
from .composed import (
    celu as celu,
    cosine_similarity as cosine_similarity,
    fold as fold,
    glu as glu,
    hardshrink as hardshrink,
    hardsigmoid as hardsigmoid,
    hardswish as hardswish,
    logsigmoid as logsigmoid,
    normalize as normalize,
    pairwise_distance as pairwise_distance,
    pixel_shuffle as pixel_shuffle,
    pixel_unshuffle as pixel_unshuffle,
    prelu as prelu,
    relu6 as relu6,
    selu as selu,
    softshrink as softshrink,
    softsign as softsign,
    tanhshrink as tanhshrink,
    threshold as threshold,
    unfold as unfold,
)
from .contraction import (
    bmm as bmm,
    einsum as einsum,
    outer as outer,
)
from .convolution import (
    conv1d as conv1d,
    conv2d as conv2d,
    conv3d as conv3d,
    conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d,
    conv_transpose3d as conv_transpose3d,
)
from .ctc import ctc_loss as ctc_loss
from .elementwise import (
    add as add,
    compare as compare,
    divide as divide,
    exp as exp,
    log as log,
    maximum as maximum,
    minimum as minimum,
    multiply as multiply,
    negative as negative,
    power as power,
    sqrt as sqrt,
    subtract as subtract,
    where as where,
)
from .functions import (
    abs as abs,
    arctan as arctan,
    arctan2 as arctan2,
    ceil as ceil,
    clamp as clamp,
    clip as clip,
    cos as cos,
    expm1 as expm1,
    floor as floor,
    log1p as log1p,
    masked_fill as masked_fill,
    reciprocal as reciprocal,
    round as round,
    rsqrt as rsqrt,
    sign as sign,
    sin as sin,
    softplus as softplus,
    square as square,
    tan as tan,
)
from .indexing import (
    argmax as argmax,
    argmin as argmin,
    argsort as argsort,
    index_add as index_add,
    index_select as index_select,
    one_hot as one_hot,
    scatter_add as scatter_add,
    sort as sort,
    take_along_dim as take_along_dim,
    topk as topk,
)
from .linear import (
    add_bias as add_bias,
    embedding as embedding,
    linear as linear,
    matmul as matmul,
)
from .loss import (
    binary_cross_entropy_with_logits as binary_cross_entropy_with_logits,
    cross_entropy as cross_entropy,
    mse as mse,
)
from .normalization import (
    add_layer_norm as add_layer_norm,
    add_rms_norm as add_rms_norm,
    dropout as dropout,
    layer_norm as layer_norm,
    rms_norm as rms_norm,
)
from .padding import pad as pad
from .pooling import (
    adaptive_avg_pool1d as adaptive_avg_pool1d,
    adaptive_avg_pool2d as adaptive_avg_pool2d,
    adaptive_avg_pool3d as adaptive_avg_pool3d,
    adaptive_max_pool1d as adaptive_max_pool1d,
    adaptive_max_pool2d as adaptive_max_pool2d,
    adaptive_max_pool3d as adaptive_max_pool3d,
    avg_pool1d as avg_pool1d,
    avg_pool2d as avg_pool2d,
    avg_pool3d as avg_pool3d,
    max_pool1d as max_pool1d,
    max_pool2d as max_pool2d,
    max_pool3d as max_pool3d,
)
from .rectifiers import (
    elu as elu,
    hardtanh as hardtanh,
    leaky_relu as leaky_relu,
    mish as mish,
)
from .recurrent import (
    gru as gru,
    lstm as lstm,
)
from .reduction import (
    all as all,
    any as any,
    max as max,
    mean as mean,
    min as min,
    sum as sum,
    variance as variance,
)
from .resampling import interpolate as interpolate
from .rotary import rotary as rotary
from .sampling import grid_sample as grid_sample
from .scan import (
    cumprod as cumprod,
    cumsum as cumsum,
)
from .segments import (
    segment_max as segment_max,
    segment_mean as segment_mean,
    segment_sum as segment_sum,
)
from .shape import (
    cast as cast,
    concatenate as concatenate,
    expand as expand,
    gather as gather,
    getitem as getitem,
    permute as permute,
    reshape as reshape,
    split as split,
    squeeze as squeeze,
    transpose as transpose,
    unsqueeze as unsqueeze,
)
from .statistics import (
    logsumexp as logsumexp,
    norm as norm,
    prod as prod,
    std as std,
    var as var,
)

cat = concatenate
