"""From a model, a configuration, a mesh and a policy to the parts of an engine.

    model --cut over tensor ranks--> layers --merged--> units --balanced--> stages --> programs
    units of this rank --> executor of their actions --> runtime of whole programs

Which policy, which schedule, how many ranks is decided here, once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ...array.device import Device
from ...comm.failure.agreement import collectively
from ...comm.mesh import Mesh
from ...comm.same import alike
from ...layout.axes import COPIES
from ...layout.policy import Policy, check_tree
from ...nn.freezing import freeze
from ...nn.loss import FunctionLoss
from ...nn.module import Module
from ...nn.objectives import owners_in
from ...optim.groups import groups_by_name
from ...schedule.actions import Program
from ...schedule.catalog import order_named
from ..data.keepers import Keepers
from ..data.matrices import check_matrices
from ..data.movement import Movement
from ..data.partition import check_trained, plan_units_for_stages, with_groups
from ..data.site import Pools
from ..data.unit import Unit, Units
from ..domain.samples import SampleParts, cut_samples
from ..domain.wanted import check_grid, lines_of
from ..fingerprint import facts_of
from ..pipeline.balance import stage_ranges
from ..pipeline.programs import Programs
from ..pipeline.stages import Stages
from ..pipeline.transfer import Transfers
from ..settings import ShardingConfiguration
from ..tensor.default_plans import default_plan
from ..tensor.plan import apply_plan, check_plan
from .buffers import Buffers, check_buffers
from .calls import AtCalls
from .compilation import Compilation
from .executor import Executor, Listening, Objective, Pumped, Runtime
from .flow import Flow
from .gathering import ByProgram
from .numerics import LossScale, Numerics
from .shortage import Shortage
from .state import State
from .updates import Updates
from .weights import Weights
from .work import Work


@dataclass(frozen=True, eq=False)
class Blueprint:
    """What all ranks know of a model before any memory is taken.

    groups        {name: group} of parameters for which the rule is another
    owners        {name: objective that trains it}; {} with one loss
    device        of this rank; of a GPU, the one that its place on the node gives it
    sharing       data ranks that share one copy of what is sharded
    is_initial    all parameters are what the seed makes
    programs_of   function of the stages
    gathering     the class of what gathers its units (gathering.py)
    samples       how ranks share each sample; None: they do not
    """

    device: Device
    rule: object
    groups: dict
    owners: dict[str, str]
    numerics: Numerics
    loss_scale: LossScale
    sharing: int
    keepers: Keepers
    stages: Stages
    programs: Programs
    programs_of: Callable[[Stages], Programs]
    is_initial: bool
    gathering: type[ByProgram] | type[AtCalls]
    samples: SampleParts | None


@dataclass(frozen=True, eq=False)
class Assembly:
    """The parts of an engine on one rank.

    plan      what was decided before any memory was taken
    pools     what its units allocate from
    plain     runs programs.plain and programs.forward
    ahead     runs programs.ahead
    listening of both: who is told what they do
    observing buffers that take observations; () in a model without
    state     of the model: weights, buffers, the optimizer's, counts
    """

    plan: Blueprint
    pools: Pools
    units: Units
    plain: Runtime
    ahead: Runtime
    listening: Listening
    observing: tuple[Buffers, ...]
    state: State

    def objectives(self, model, config, mesh: Mesh, overlap, compilation) -> tuple[Objective, ...]:
        """Return what steps train: the model, or parts of it while others rest."""
        plan, parameters = self.plan, model.named_parameters()
        if not plan.owners:
            return (Objective("", self.units.trained, self.ahead, overlap, compilation),)
        found = []
        for name, loss in (config.loss or model.loss).losses.items():
            others = {each for each, owner in plan.owners.items() if owner != name}
            plans = plan.stages.plans.items()
            idle = (at for at, unit in plans if others & {*unit.parameters})
            stages = replace(plan.stages, idle=frozenset(idle))
            own = replace(plan, stages=stages, programs=plan.programs_of(stages))
            beside = self.units, self.pools, self.plain.movement, self.listening
            plain, ahead = _runtimes(config, mesh, own, *beside)
            units = self.units.outside(stages.frozen)
            plain = Compilation(plain, self.pools, mesh, model, plan.owners)
            rest = FunctionLoss(loss), tuple(parameters[each] for each in others)
            found.append(Objective(name, units, ahead, overlap, plain, *rest))
        return tuple(found)

    @classmethod
    def of(
        cls,
        model: Module,
        config: ShardingConfiguration,
        mesh: Mesh,
        policy: Policy,
        *,
        is_copy: bool = False,
    ) -> "Assembly":
        """Build the parts. Collective over the mesh.

        is_copy   the model is a copy of one that ranks agreed on: what forward passes have left in
                  its modules since then may be each rank's own
        Errors, on all ranks: those of model and configuration.
        """
        if not is_copy:
            _check_alike(model, config, mesh, policy)
        awaits_values = any(parameter.awaits_values for parameter in model.parameters())
        with collectively(mesh.world):
            plan = _drawn(model, config, mesh, policy)
        sharing, *between = mesh.cut_data(plan.sharing)
        if config.device == "cuda":
            mesh.open_gpu_transport(config.gpu_transport, deterministic=config.deterministic)
        pools = Pools(
            plan.device,
            plan.numerics.dtype,
            plan.numerics.compute_dtype,
            gathered=plan.gathering.buffers,
        )
        movement = Movement(
            sharing,
            pools.whole_gradients,
            between=tuple(between),
            deterministic=config.deterministic,
            wire_dtype=config.gradient_compression,
        )
        units = _units(plan, mesh, pools, movement)
        buffers = Buffers(model, mesh, plan.stages, plan.device)
        listening = Listening(mesh)
        plain, ahead = _runtimes(config, mesh, plan, units, pools, movement, listening)
        weights = Weights(
            model,
            mesh,
            plan.stages,
            units,
            plan.device,
            is_initial=plan.is_initial,
            awaits_values=awaits_values,
        )
        return cls(
            plan=plan,
            pools=pools,
            units=units,
            plain=plain,
            ahead=ahead,
            listening=listening,
            observing=(buffers,) if buffers.everyones else (),
            state=State(model, mesh.world, weights, buffers, plan, config.parameter_groups),
        )


def _check_alike(model, config, mesh, policy) -> None:
    """Raise on all ranks if the model cannot be trained, or ranks were given different ones, or
    domain ranks are not the grid that is wanted.
    """
    advice = "build the same model, with the same configuration, on all ranks"
    with alike(mesh.world, advice) as facts:
        if config.frozen:
            freeze(model, config.frozen)
        check_trained(model)  # before anything is cut
        check_grid(config, mesh)
        facts |= facts_of(model, config, policy)
    lines_of(config, mesh)  # groups are made here: what follows does not communicate


def _drawn(model, config, mesh, policy) -> Blueprint:
    """Cut the model over the tensor axis, and decide all that differs between configurations.

    Nothing in it communicates.
    """
    device = Device(config.device, ordinal=mesh.world.local_rank)
    device.drawing_on(mesh.group(COPIES).memory() or mesh.group("tensor").memory())
    rule = config.named_rule("sgd") if config.optimizer is None else config.optimizer
    groups = groups_by_name(model.named_parameters(), config.parameter_groups, rule)
    model.finish(config.seed)
    samples = _cut_layers(model, config, mesh)
    check_matrices(model.named_parameters(), rule, groups)
    is_initial = all(parameter.is_fresh for parameter in model.parameters())
    order = order_named(config.schedule)(
        mesh.size("pipeline"), config.micro_batches, config.virtual_stages
    )
    owners = owners_in(model, config.loss)
    stages = _stages(model, config, order, rule, groups, owners)
    numerics = Numerics.of(config, model, device.xp)
    sharing = _sharing(config, mesh, policy)
    keepers = Keepers.of(policy, sharing, rounds=numerics.is_mixed)
    is_released = keepers.parameters.is_released_after_use
    gathering = _gathering(stages, config) if is_released else ByProgram
    programs_of = _programs_of(config, mesh, order, gathering, begins_gathers=is_released)
    return Blueprint(
        device=device,
        rule=rule,
        groups=groups,
        owners=owners,
        numerics=numerics,
        loss_scale=LossScale.of(config, numerics),
        sharing=sharing,
        keepers=keepers,
        stages=stages,
        programs=programs_of(stages),
        programs_of=programs_of,
        is_initial=is_initial,
        gathering=gathering,
        samples=samples,
    )


def _gathering(stages: Stages, config) -> type[ByProgram] | type[AtCalls]:
    """Return the class of what gathers parameters that are released; slabs call modules in turns,
    so theirs are whole for all of a block.
    """
    at_calls = stages.are_of_modules and config.domain_slabs is None
    return AtCalls if at_calls else ByProgram


def _programs_of(config, mesh, order: Program, gathering, *, begins_gathers: bool):
    """Return the function of stages that returns the programs of this pipeline rank."""
    return partial(
        gathering.programs,
        order,
        pipeline_rank=mesh.coordinates.pipeline,
        clip=config.max_gradient_norm is not None,
        begins_gathers=begins_gathers,
        begins_reductions=config.deterministic and not config.gradient_compression,
    )


def _stages(model, config, order: Program, rule, groups: dict, owners: dict) -> Stages:
    """Return the units of the model, cut into the stages of the order."""
    num_stages = len({action.stage for actions in order.values() for action in actions})
    is_clipped = config.max_gradient_norm is not None
    units = plan_units_for_stages(
        model, config.minimum_parameter_group_size, num_stages, is_clipped=is_clipped
    )
    units = with_groups(units, groups, config.parameter_groups, rule, owners)
    ranges = stage_ranges(units, num_stages, config.stage_balance, config.blocks_per_stage)
    stages = Stages.of(units, ranges, order)
    check_buffers(model, stages)
    return stages


def _sharing(config, mesh, policy) -> int:
    """Return how many data ranks share one copy."""
    copies = mesh.size(COPIES)
    sharing = policy.sharing(copies, config.shard_ranks, mesh.ranks_per_node(COPIES))
    if config.deterministic and not config.gradient_compression:
        check_tree(copies, sharing)
    return sharing


def _units(plan: Blueprint, mesh, pools, movement) -> Units:
    """Return the units of this pipeline rank. Collective over the data axis.

    The parameters of the other stages are released too: nobody may read initial values for trained
    ones.
    """
    stages = plan.stages
    units = {
        place: Unit(stages.plans[place], movement, plan.keepers, plan.rule, pools, plan.groups)
        for place in stages.of_rank(mesh.group("pipeline").rank)
    }
    for unit_plan in stages.plans.values():
        for parameter in unit_plan.parameters.values():
            parameter.release()
    return Units(units)


def _cut_layers(model, config, mesh) -> SampleParts | None:
    """Make layers work on this domain rank's part of samples, and be this tensor rank's part of
    them, as the plan says; return how ranks share samples.
    """
    samples = cut_samples(model, config, mesh)
    tensor = mesh.group("tensor")
    is_cut = any(parameter.claim is not None for parameter in model.parameters())
    if tensor.world_size > 1 and not is_cut:
        plan = config.tensor_plan or default_plan(model)
        apply_plan(model, plan, tensor, sequence=config.sequence_parallel)
    elif config.tensor_plan is not None and not is_cut:
        check_plan(model, config.tensor_plan)  # a wrong one is wrong on one tensor rank, too
    return samples


def _runtimes(config, mesh, plan: Blueprint, units, pools, movement, listening) -> tuple:
    """Return what runs plain programs, and what runs those that begin messages ahead."""
    stages, numerics = plan.stages, plan.numerics
    transfers = Transfers(
        mesh.group("pipeline"), stages.rank_of, pools.device, numerics.usual_dtype
    )
    gathering = plan.gathering(units, stages, mesh)
    keeps = not config.activation_checkpointing
    work = Work(units, stages, pools.arena, gathering, keep_activations=keeps)
    flow = Flow(stages, transfers, work)
    updates = Updates(units, stages, mesh, movement, transfers)
    table = {**flow.table, **gathering.table, **updates.table}
    executor = Executor(table, listening)
    of_zeros = Executor({**table, **flow.table_of_zeros}, listening)

    def runtime(program, executor, of_zeros):
        guarded = Shortage(
            executor, of_zeros, flow, pools.device, rank=mesh.rank, agrees_on=gathering.agrees_on
        )
        return Runtime(guarded, flow, movement, gathering, units, pools.arena, numerics, program)

    pumped = [Pumped(each, movement.pump, listening) for each in (executor, of_zeros)]
    programs = plan.programs
    return runtime(programs.plain, executor, of_zeros), runtime(programs.ahead, *pumped)
