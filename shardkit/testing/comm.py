"""comm: channels and collectives, transports of GPUs, and the watch over ranks."""

from . import open_door

ROOM = "shardkit.comm"
NAMES = {
    "": (
        "Ballot Handle abort_on_error agree by_first check_same collectively ordered_all_reduce "
        "ordered_reduce_scatter ordered_sum"
    ),
    "channel": "Channel ArrayMemory NotedCalls WrappedChannel",
    "checks": "check_timeout",
    "clocks": "ClockOffset clock_offset on_first_clock",
    "collectives.asynchronous": (
        "InTurn begin_all_gather begin_ordered_all_reduce begin_ordered_reduce_scatter "
        "to_all to_owner"
    ),
    "collectives.rounds": "DIRECT rounds_of_gather rounds_of_sum",
    "failure.signals": "StopSignals",
    "gpu.choice": "RankPlace choose choose_planned",
    "gpu.ipc": "open_gpu_ipc",
    "gpu.mpi": "MPITransport open_gpu_mpi",
    "gpu.nccl": "open_nccl",
    "gpu.probe": "SIZE_CLASSES VERBS Verdict _session_members _try_all agreed_verdict probe",
    "gpu.transports": "choose_here",
    "mpi.channel": "MPIChannel",
    "mpi.comparing": "COMPARED_CALLS",
    "mpi.exits": "exits",
    "mpi.guard": "JobGuard",
    "mpi.launch": "check_launch check_library launch_warnings",
    "node.between": "COMBINE RoundsChannel",
    "node.noted": "Loops NotedLoops",
    "node.channel": "CALLS_BEFORE_OPENING SMALL_BYTES SharedMemoryChannel",
    "node.heap": "Heap IDLE_BYTES Mapping PAGE_BYTES",
    "node.mailbox": "NAPS NAP_TURNS SLOT_BYTES YIELDS YIELD_TURNS new_mailbox table_of",
    "node.streams": "STREAM_BYTES stream_bytes",
    "operations": "COMPILED_VERBS CompleteHandle",
    "quotas": "own_quotas",
    "same": "alike versions",
    "seats": "Seat crowding have_cores ranks_text share_cores",
    "staging": "Staging",
    "threads.channel": "ThreadChannel",
    "transport": "Lane",
    "threads.rendezvous": "Environment",
    "watch.attendance": "Attendance attendance job_key",
    "watch.call_clock": "CallClock ranks_needed",
    "watch.cores": "FairClock MOST_SECONDS OnCores children_of on_cores",
    "watch.frames": "main_frame",
    "watch.folder": "JobFolder PREFIX note_segments remove_abandoned",
    "watch.hang": "HANG_NAME hang_report hang_suspects idle_since",
    "watch.ledger": "LEDGER_NAME Ledger NUM_RECORDS",
    "watch.ledgers": "read_ledgers",
    "watch.ranges": "ranges_text ranks_in",
    "watch.recorded": "read_ledger",
    "watch.processes": "EndOfProcess state_of",
    "watch.progress": "Call Progress",
    "watch.pulse": "note_path",
    "watch.roll": "EXIT_HOOKS Entry Roll",
    "watch.turn": "Turn",
    "watch.warden": "Warden whom",
    "watch.watchdog": "Watchdog",
    "watch.witness": "Witness",
}
MODULES = {
    "arguments": "arguments",
    "call_clock": "watch.call_clock",
    "checks": "checks",
    "cores": "watch.cores",
    "ending": "mpi.ending",
    "gpu_calls": "gpu.calls",
    "gpu_transports": "gpu.transports",
    "gpu_ipc": "gpu.ipc",
    "gpu_levels": "gpu.levels",
    "gpu_mpi": "gpu.mpi",
    "gpu_nccl": "gpu.nccl",
    "gpu_probe": "gpu.probe",
    "job_folder": "watch.folder",
    "ledger": "watch.ledger",
    "mesh": "mesh",
    "mpi_requests": "mpi.requests",
    "own_warden": "watch.own_warden",
    "same": "same",
    "threads_backend": "threads.backend",
}

open_door(__name__)
