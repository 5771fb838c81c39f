"""Faults of asynchronous transfers to the device."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "transfer.offset_ignored",
        "manager.c",
        "    memcpy(target + each->offset, each->data, (size_t)each->size);\n",
        "    memcpy(target, each->data, (size_t)each->size);\n",
        "PJRT_AsyncHostToDeviceTransferManager_TransferData ignores the offset.",
    ),
    Mutant(
        "transfer.ready_after_first",
        "manager.c",
        "  bool complete = --it->under_way == 0 && it->last_seen;\n",
        "  bool complete = --it->under_way == 0;\n",
        "A buffer is ready after its first transfer, although others follow.",
    ),
    Mutant(
        "transfer.event_never_ready",
        "manager.c",
        "  promise_set(each->done, NULL);\n  promise_unref(each->done);\n",
        "",
        "The event of a transfer is never ready.",
    ),
    Mutant(
        "transfer.retrieves_first",
        "manager.c",
        "  args->buffer_out = manager->slots[args->buffer_index].buffer;\n"
        "  manager->slots[args->buffer_index].buffer = NULL;\n",
        "  size_t first = 0;\n"
        "  while (first + 1 < manager->num_slots && !manager->slots[first].buffer) ++first;\n"
        "  args->buffer_out = manager->slots[first].buffer;\n  manager->slots[first].buffer = NULL;\n",
        "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer returns the buffers in order, whatever the index.",
    ),
)
