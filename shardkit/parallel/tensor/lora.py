"""LoRA beside weights that are cut: one of its two matrices is cut with the weight.

    column   lora_A whole, lora_B cut by rows as the weight       x enters once for both
    row      lora_A cut by columns as the weight, lora_B whole    one sum for both

The matrix that is whole is used for this rank's part only, so its gradient is a term of a sum: its
claim is "partial".
"""

from ...nn.layers.basic import input_tensor
from ...nn.lora import low_rank_update
from ...nn.ops.elementwise import add
from ...nn.ops.linear import add_bias, linear
from .layers import ColumnParallelLinear, RowParallelLinear


class ColumnParallelLoRALinear(ColumnParallelLinear):
    """A ColumnParallelLinear with an update of low rank.

    lora_A [rank, in], lora_B [out/T, rank] local; others: see ColumnParallelLinear
    """

    def __init__(self, axis, weight, bias, lora_A, lora_B, scale: float, **choices):
        super().__init__(axis, weight, bias, **choices)
        self.lora_A, self.lora_B, self._scale = lora_A, lora_B, scale

    def forward(self, x, activation=None):
        x = input_tensor(x, self.weight.dtype)
        if self._enters:
            x = self._axis.enter(x)
        update = low_rank_update(x, self.lora_A, self.lora_B, self._scale)
        y = add(linear(x, self.weight, self.bias), update)
        activation = activation or self._activation
        return y if activation is None else activation(y)


class RowParallelLoRALinear(RowParallelLinear):
    """A RowParallelLinear with an update of low rank, and one sum over the ranks for both.

    lora_A [rank, in/T] local, lora_B [out, rank]; others: see RowParallelLinear
    """

    def __init__(self, axis, weight, bias, lora_A, lora_B, scale: float, **choices):
        super().__init__(axis, weight, bias, **choices)
        self.lora_A, self.lora_B, self._scale = lora_A, lora_B, scale

    def forward(self, x, activation=None):
        update = low_rank_update(x, self.lora_A, self.lora_B, self._scale)
        total = self._axis.leave(add(linear(x, self.weight), update))
        return add_bias(total, self.bias, activation or self._activation)
