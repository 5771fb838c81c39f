"""Faults of asynchronous transfers to the device."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "transfer.offset_ignored",
        "transfer.c",
        "push(manager, it, (size_t)args->offset, staging",
        "push(manager, it, 0, staging",
        "PJRT_AsyncHostToDeviceTransferManager_TransferData ignores the offset.",
    ),
    Mutant(
        "transfer.ready_after_first",
        "transfer.c",
        "  bool is_complete = --it->under_way == 0 && it->is_last_seen;\n",
        "  bool is_complete = --it->under_way == 0;\n",
        "A buffer is ready after its first transfer, although others follow.",
    ),
    Mutant(
        "transfer.event_never_ready",
        "transfer.c",
        "  completion_set(each->done, pjrt_error_share(borrowed));\n  completion_unref(each->done);\n  if (is_complete",
        "  if (is_complete",
        "The event of a transfer is never ready.",
    ),
    Mutant(
        "transfer.retrieves_first",
        "transfer.c",
        "  args->buffer_out = manager->slots[args->buffer_index].buffer;\n"
        "  manager->slots[args->buffer_index].buffer = NULL;\n",
        "  size_t first = 0;\n"
        "  while (first + 1 < manager->num_slots && !manager->slots[first].buffer) ++first;\n"
        "  args->buffer_out = manager->slots[first].buffer;\n"
        "  manager->slots[first].buffer = NULL;\n",
        "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer returns the buffers in order, whatever the index.",
    ),
)
