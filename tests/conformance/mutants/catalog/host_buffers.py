"""Faults of buffers from host memory and back."""

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "from_host.during_call_aliases",
        "transfer.c",
        "  if ((semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||\n",
        "  if ((semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall ||\n"
        "       semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||\n",
        "The host data is used in place although the caller may change it after the call.",
    ),
    Mutant(
        "from_host.zero_copy_done_early",
        "transfer.c",
        "  args->done_with_host_buffer = event_make(held->freed);\n",
        "  args->done_with_host_buffer = event_make(&completion_done);\n",
        "The plugin reports that it is done with host data that a buffer still uses in place.",
    ),
    Mutant(
        "from_host.zero_copy_done_never",
        "buffer.c",
        "    completion_set(each->freed, NULL);\n    completion_unref(each->freed);\n",
        "    completion_ref(each->freed);\n",
        "The plugin never reports that it is done with host data that a buffer used in place.",
    ),
    Mutant(
        "from_host.strides_ignored",
        "transfer.c",
        "  if (args->byte_strides == NULL || args->num_byte_strides == 0) {\n",
        "  if (args->byte_strides == NULL || args->num_byte_strides < 64) {\n",
        "The strides of the host data are ignored.",
    ),
    Mutant(
        "from_host.negative_strides",
        "transfer.c",
        "  memcpy(strides, args->byte_strides, of->rank * sizeof *strides);\n",
        "  for (size_t i = 0; i < of->rank; ++i) strides[i] = llabs(args->byte_strides[i]);\n",
        "A negative stride of the host data is read as a positive one.",
    ),
    Mutant(
        "from_host.device_layout_ignored",
        "transfer.c",
        "args->type, args->dims, args->num_dims, args->device_layout, space);",
        "args->type, args->dims, args->num_dims, NULL, space);",
        "The layout that the caller wants on the device is ignored.",
    ),
    Mutant(
        "from_host.device_ignored",
        "device.c",
        "  *out = memory ? (memory_space *)memory : &device->spaces[0];\n",
        "  *out = memory ? (memory_space *)memory : &device->client->devices[0].spaces[0];\n",
        "A buffer for another device is made on the first one.",
    ),
    Mutant(
        "from_host.empty_refused",
        "shape.c",
        '    if (dims[i] < 0) return error_make(INVALID, "dimension',
        '    if (dims[i] <= 0) return error_make(INVALID, "dimension',
        "Arrays without elements are refused.",
    ),
    Mutant(
        "from_host.c128_half",
        "shape.c",
        '    [PJRT_Buffer_Type_C128] = {"c128", 128},\n',
        '    [PJRT_Buffer_Type_C128] = {"c128", 64},\n',
        "Elements of type C128 have half of their size.",
    ),
    Mutant(
        "to_host.small_destination",
        "transfer.c",
        "  if (args->dst_size < span)\n",
        "  if (args->dst_size == 0)\n",
        "PJRT_Buffer_ToHostBuffer writes behind the end of a destination that is too small.",
    ),
    Mutant(
        "to_host.layout_ignored",
        "transfer.c",
        "  if (layout == NULL) {\n    shape_strides(of, strides);\n",
        "  if (layout == NULL || layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled) {\n"
        "    shape_strides(of, strides);\n",
        "The layout that the caller wants on the host is ignored.",
    ),
    Mutant(
        "to_host.event_before_copy",
        "transfer.c",
        "  char *to = each->to;\n  if (queue_leaves_work(client) ||",
        "  completion_set(each->done, NULL);\n  char *to = each->to;\n  if (queue_leaves_work(client) ||",
        "The event of a copy to the host is ready before the data is there.",
    ),
    Mutant(
        "to_host.does_not_wait",
        "transfer.c",
        "  else when_submitted(defined, device, submit_download, each);\n",
        "  else submit_download(NULL, each);\n",
        "A copy to the host does not wait until the buffer has its data.",
    ),
    Mutant(
        "to_host.loses_error",
        "transfer.c",
        "  storage_read(each->storage);\n  completion_set(each->done, error);\n",
        "  storage_read(each->storage);\n  completion_set(each->done, NULL);\n",
        "A copy to the host of a failed buffer ends without an error.",
    ),
    Mutant(
        "to_host.frees_source",
        "transfer.c",
        "  storage_read(each->storage);\n  completion_set(each->done, error);\n",
        "  storage_read(each->storage);\n"
        "  if (!each->is_raw && !error) storage_unref(each->storage);\n"
        "  completion_set(each->done, error);\n",
        "A copy to the host gives back one reference to the memory too many.",
    ),
    Mutant(
        "raw_to_host.offset_ignored",
        "transfer.c",
        "  each->offset = (size_t)offset;\n  each->size = (size_t)size;\n",
        "  each->offset = 0;\n  each->size = (size_t)size;\n",
        "PJRT_Buffer_CopyRawToHost ignores the offset.",
    ),
    Mutant(
        "raw_to_host_future.error_forgotten",
        "transfer.c",
        "  if (error) {\n"
        "    end_download(error, each);\n"
        "    pjrt_error_release(error);\n"
        "    return;\n"
        "  }\n"
        "  each->to = args->dst;\n",
        "  if (error) return;\n  each->to = args->dst;\n",
        "When the caller's callback of PJRT_Buffer_CopyRawToHostFuture has an error, the event is never ready.",
    ),
)
