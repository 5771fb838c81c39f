"""Faults of buffers from host memory and back."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "from_host.during_call_aliases",
        "buffer_host.c",
        "  bool zero_copy = (semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||\n",
        "  bool zero_copy = (semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall ||\n"
        "                    semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||\n",
        "The host data is used in place although the caller may change it after the call.",
    ),
    Mutant(
        "from_host.zero_copy_done_early",
        "buffer_host.c",
        "    each->storage->freed = promise_ref(host_done);\n",
        "    promise_set(host_done, NULL);\n",
        "The plugin reports that it is done with host data that a buffer still uses in place.",
    ),
    Mutant(
        "from_host.zero_copy_done_never",
        "storage.c",
        "    promise_set(storage->freed, NULL);\n    promise_unref(storage->freed);\n",
        "    promise_ref(storage->freed);\n",
        "The plugin never reports that it is done with host data that a buffer used in place.",
    ),
    Mutant(
        "from_host.strides_ignored",
        "buffer_host.c",
        "  if (args->byte_strides && args->num_byte_strides) {\n",
        "  if (args->byte_strides && args->num_byte_strides > 64) {\n",
        "The strides of the host data are ignored.",
    ),
    Mutant(
        "from_host.negative_strides",
        "buffer_host.c",
        "    memcpy(strides, args->byte_strides, shape->rank * sizeof *strides);\n",
        "    for (size_t i = 0; i < shape->rank; ++i) strides[i] = llabs(args->byte_strides[i]);\n",
        "A negative stride of the host data is read as a positive one.",
    ),
    Mutant(
        "from_host.device_layout_ignored",
        "buffer_host.c",
        "args->type, args->dims, args->num_dims, args->device_layout);",
        "args->type, args->dims, args->num_dims, NULL);",
        "The layout that the caller wants on the device is ignored.",
    ),
    Mutant(
        "from_host.device_ignored",
        "device.c",
        "  *out = memory ? (tiny_memory *)memory : &device->memories[0];\n",
        "  *out = memory ? (tiny_memory *)memory : &device->client->local_handles[0]->memories[0];\n",
        "A buffer for another device is made on the first one.",
    ),
    Mutant(
        "from_host.empty_refused",
        "shape.c",
        '    if (dims[i] < 0) return status_make(INVALID, "Dimension %zu is negative',
        '    if (dims[i] <= 0) return status_make(INVALID, "Dimension %zu is negative',
        "Arrays without elements are refused.",
    ),
    Mutant(
        "from_host.c128_half",
        "shape.c",
        '    [PJRT_Buffer_Type_C128] = {"c128", 16, 18},\n',
        '    [PJRT_Buffer_Type_C128] = {"c128", 8, 18},\n',
        "Elements of type C128 have half of their size.",
    ),
    Mutant(
        "to_host.small_destination",
        "buffer_host.c",
        "  if (!status && args->dst_size < span)\n",
        "  if (!status && args->dst_size == 0)\n",
        "PJRT_Buffer_ToHostBuffer writes behind the end of a destination that is too small.",
    ),
    Mutant(
        "to_host.layout_ignored",
        "buffer_host.c",
        "  if (layout == NULL) {\n",
        "  if (layout == NULL || layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled) {\n",
        "The layout that the caller wants on the host is ignored.",
    ),
    Mutant(
        "to_host.event_before_copy",
        "buffer_host.c",
        "  tiny_status *status = status_ref(promise_status(each->defined));\n  if (status == NULL && each->raw) {\n",
        "  tiny_status *status = status_ref(promise_status(each->defined));\n"
        "  if (status == NULL) promise_set(each->done, NULL);\n  if (status == NULL && each->raw) {\n",
        "The event of a copy to the host is ready before the data is there.",
    ),
    Mutant(
        "to_host.does_not_wait",
        "buffer_host.c",
        "  tiny_promise *dep = promise_ref(buffer->defined);\n"
        "  queue_push_after(buffer->memory->device->queue, &dep, 1, run_download, each);\n",
        "  tiny_promise *dep = promise_ref(buffer->defined);\n"
        "  queue_push(buffer->memory->device->queue, run_download, each);\n",
        "A copy to the host does not wait until the buffer has its data.",
    ),
    Mutant(
        "to_host.loses_error",
        "buffer_host.c",
        "  storage_unref(each->storage);\n  promise_set(each->done, status);\n"
        "  promise_unref(each->done);\n  promise_unref(each->defined);\n",
        "  storage_unref(each->storage);\n  promise_set(each->done, NULL);\n"
        "  promise_unref(each->done);\n  promise_unref(each->defined);\n",
        "A copy to the host of a failed buffer ends without an error.",
    ),
    Mutant(
        "to_host.frees_source",
        "buffer_host.c",
        "  storage_unref(each->storage);\n  promise_set(each->done, status);\n"
        "  promise_unref(each->done);\n  promise_unref(each->defined);\n",
        "  storage_unref(each->storage);\n  if (!each->raw && !status) storage_unref(each->storage);\n"
        "  promise_set(each->done, status);\n  promise_unref(each->done);\n  promise_unref(each->defined);\n",
        "A copy to the host gives back one reference to the memory too many.",
    ),
    Mutant(
        "raw_to_host.offset_ignored",
        "buffer_host.c",
        "memcpy(each->destination, storage_bytes(each->storage) + each->offset, (size_t)each->size);",
        "memcpy(each->destination, storage_bytes(each->storage), (size_t)each->size);",
        "PJRT_Buffer_CopyRawToHost ignores the offset.",
    ),
    Mutant(
        "raw_to_host_future.error_forgotten",
        "buffer_host.c",
        "    storage_unref(each->storage);\n    promise_set(each->done, status);\n"
        "    promise_unref(each->done);\n    promise_unref(later->defined);\n",
        "    storage_unref(each->storage);\n    promise_unref(later->defined);\n",
        "When the caller's callback of PJRT_Buffer_CopyRawToHostFuture has an error, the event is never ready.",
    ),
)
