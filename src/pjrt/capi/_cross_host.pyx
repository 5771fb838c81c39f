"""The CrossHostTransfers extension: buffers sent between the devices of different processes."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pjrt.capi._api cimport blob, count, deleter_t, function_t, start
from pjrt.capi._buffer cimport BufferCore, new_buffer
from pjrt.capi._device cimport native_device
from pjrt.capi._event cimport lazy_future
from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, Scope
from pjrt.capi._ticket cimport redeem, ticket_for
from pjrt.capi._values cimport Block, NativeLayout, int64_block, native_layout

from pjrt.api.checks import expect
from pjrt.api.buffer import CrossHostReceive
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from pjrt.api.future import Future, Promise
from pjrt.capi._documented import documented


cdef class _Shapes:
    """Shapes in the form of the extension: one array for each property."""

    cdef size_t number
    cdef Block sizes
    cdef Block dims
    cdef Block types
    cdef Block layouts
    cdef list keep
    cdef bint laid_out

    def __init__(self, specs):
        cdef size_t index
        cdef Block numbers
        cdef NativeLayout layout
        self.number = len(specs)
        self.sizes = int64_block([len(spec.shape) for spec in specs])
        self.dims = Block.of(self.number * sizeof(void *))
        self.types = Block.of(self.number * sizeof(PJRT_Buffer_Type))
        self.layouts = Block.of(self.number * sizeof(void *))
        self.keep = []
        for index in range(self.number):
            spec = specs[index]
            numbers = int64_block(spec.shape)
            layout = native_layout(spec.layout)
            self.keep += [numbers, layout]
            self.laid_out = self.laid_out or spec.layout is not None
            (<int64_t **>self.dims.data)[index] = <int64_t *>numbers.data
            (<PJRT_Buffer_Type *>self.types.data)[index] = <PJRT_Buffer_Type><int>spec.element_type
            (<PJRT_Buffer_MemoryLayout **>self.layouts.data)[index] = layout.pointer


def send_buffers(ClientScope client, buffers, destinations, keys):
    """``Client.cross_host_send_buffers``."""
    cdef PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args args
    cdef size_t number = len(buffers), index
    cdef Block natives = Block.of(number * sizeof(void *))
    cdef Block events = Block.of(number * sizeof(void *))
    cdef Block ids = int64_block(destinations)
    cdef Block tags = int64_block(keys)
    _check_lengths(number, destinations, keys)
    for index in range(number):
        buffer = buffers[index]
        if not isinstance(buffer, BufferCore) or (<BufferCore>buffer).scope is not client:
            raise InvalidArgumentError(f"a client sends buffers of its own, found {buffer!r}")
        (<void **>natives.data)[index] = (<BufferCore>buffer).use()
        (<void **>events.data)[index] = NULL
    start(&args, PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    args.num_buffers = number
    args.buffers = <PJRT_Buffer **>natives.data
    args.dst_global_device_ids = <int64_t *>ids.data
    args.transfer_keys = <int64_t *>tags.data
    args.send_events = <PJRT_Event **>events.data
    client.call(SLOT_PJRT_Transfers_PJRT_Client_CrossHostSendBuffers, &args)
    return [lazy_future(client, (<PJRT_Event **>events.data)[index], None) for index in range(number)]


def receive_buffers(ClientScope client, specs, device, sources, keys):
    """``Client.cross_host_receive_buffers``."""
    cdef PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args args
    cdef Pin pin = Pin.of(client)
    cdef _Shapes shapes = _Shapes(specs)
    cdef size_t index
    cdef Block buffers = Block.of(shapes.number * sizeof(void *))
    cdef Block ids = int64_block(sources)
    cdef Block tags = int64_block(keys)
    _check_lengths(shapes.number, sources, keys)
    start(&args, PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    args.num_shapes = shapes.number
    args.shape_num_dims = <size_t *>shapes.sizes.data
    args.num_dims = <const int64_t **>shapes.dims.data
    args.element_types = <PJRT_Buffer_Type *>shapes.types.data
    args.layouts = <PJRT_Buffer_MemoryLayout **>shapes.layouts.data if shapes.laid_out else NULL
    args.device = native_device(client, device)
    args.src_global_device_ids = <int64_t *>ids.data
    args.transfer_keys = <int64_t *>tags.data
    args.buffers = <PJRT_Buffer **>buffers.data
    client.call(SLOT_PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers, &args)
    return [new_buffer(client, (<PJRT_Buffer **>buffers.data)[index]) for index in range(shapes.number)]


def _check_lengths(number, devices, keys):
    if len(devices) != number or len(keys) != number:
        raise InvalidArgumentError(
            f"each buffer has one device and one key: found {number} buffers, {len(devices)} devices, {len(keys)} keys"
        )


# The first generation of the extension: the receiver makes descriptors, which the caller brings to the sender.


cdef class ReceiveCore:
    """Buffers that wait for a sender who has their descriptors."""

    cdef ClientScope scope
    cdef readonly tuple buffers
    cdef object promise
    cdef PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier
    cdef void *cancel_arg

    @property
    def descriptors(self):
        return self.promise.future

    def cancel(self, index, reason):
        cdef bytes descriptor, message = reason.encode()
        cdef PJRT_Transfers_CrossHostSendCancelNotifier notifier = self.cancel_notifier
        cdef void *argument = self.cancel_arg
        cdef char *data
        cdef char *text_data = message
        cdef size_t size, text_size = len(message)
        cdef void *canceled_arg
        if not 0 <= index < len(self.buffers):
            raise OutOfRangeError(f"there is no buffer {index} among {len(self.buffers)}")
        if notifier == NULL:
            raise FailedPreconditionError(
                "a transfer can be cancelled once its descriptors are available; wait for receive.descriptors first"
            )
        descriptor = self.promise.future.result()[index]
        data, size = descriptor, len(descriptor)
        done = Promise()
        canceled_arg = ticket_for((self.scope, done))
        with nogil:
            notifier(data, size, PJRT_Error_Code_CANCELLED, text_data, text_size, _on_canceled, canceled_arg, argument)
        return done.future


@documented
class PluginCrossHostReceive(ReceiveCore, CrossHostReceive):
    """Buffers of a plugin that another process fills."""

    __slots__ = ()


def make_receive_buffers(ClientScope client, specs, device):
    """``Client.make_cross_host_receive_buffers``."""
    cdef PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args args
    cdef Pin pin = Pin.of(client)
    cdef _Shapes shapes = _Shapes(specs)
    cdef size_t index
    cdef Block buffers = Block.of(shapes.number * sizeof(void *))
    receive = PluginCrossHostReceive()
    (<ReceiveCore>receive).scope = client
    (<ReceiveCore>receive).promise = Promise()
    start(&args, PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    args.num_shapes = shapes.number
    args.shape_num_dims = <size_t *>shapes.sizes.data
    args.num_dims = <const int64_t **>shapes.dims.data
    args.element_types = <PJRT_Buffer_Type *>shapes.types.data
    args.layouts = <PJRT_Buffer_MemoryLayout **>shapes.layouts.data if shapes.laid_out else NULL
    args.device = native_device(client, device)
    args.notifier.user_arg = ticket_for(receive)
    args.notifier.notifier = _on_descriptors
    args.buffers = <PJRT_Buffer **>buffers.data
    try:
        client.call(SLOT_PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers, &args)
    except BaseException:
        redeem(args.notifier.user_arg)
        raise
    number = count(min(args.num_buffers, shapes.number), args.buffers, "the buffers of a transfer")
    (<ReceiveCore>receive).buffers = tuple(
        [new_buffer(client, (<PJRT_Buffer **>buffers.data)[index]) for index in range(number)]
    )
    return receive


cdef void _on_descriptors(
    PJRT_Error *error, const char **descriptors, size_t *sizes, size_t number, void *user_arg,
    PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier, void *cancel_arg,
) noexcept nogil:
    # Any thread, without the GIL; the error is ours. The descriptors are the plugin's and live during the call.
    if gate_enter():
        _tell_descriptors(error, descriptors, sizes, number, user_arg, cancel_notifier, cancel_arg)
        gate_leave()


cdef void _tell_descriptors(
    PJRT_Error *error, const char **descriptors, size_t *sizes, size_t number, void *user_arg,
    PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier, void *cancel_arg,
) noexcept with gil:
    cdef size_t index
    cdef ReceiveCore receive = redeem(user_arg)
    if receive is None:
        return
    try:
        if error != NULL:
            receive.promise.set_error(receive.scope.api.take_error(error))
            return
        receive.cancel_arg = cancel_arg  # first: a thread that cancels looks at the function
        receive.cancel_notifier = cancel_notifier
        receive.promise.set_result(
            [
                blob(descriptors[index], sizes[index], "a descriptor")
                for index in range(count(number, descriptors, "the descriptors"))
            ]
        )
    except BaseException as failure:
        receive.promise.set_error(failure)


cdef void _on_canceled(PJRT_Error *error, void *user_arg) noexcept nogil:
    # Any thread, without the GIL; the error is ours.
    if gate_enter():
        _settle(error, user_arg)
        gate_leave()


cdef void _settle(PJRT_Error *error, void *user_arg) noexcept with gil:
    """Complete the promise of the scope and promise that a ticket stands for."""
    waiting = redeem(user_arg)
    if waiting is None:
        return
    scope, promise = waiting[:2]
    if error != NULL:
        promise.set_error((<Scope>scope).api.take_error(error))
    else:
        promise.set_result(None)


cdef struct descriptor_t:
    char *data
    size_t size


cdef class _DescriptorSetter:
    """A callback of the future of a descriptor: hands the descriptor to the plugin."""

    cdef Scope scope
    cdef PJRT_Event *event
    cdef descriptor_t *slot

    def __call__(self, future):
        cdef PJRT_Event_Set_Args args
        cdef bytes data, message
        start(&args, PJRT_Event_Set_Args_STRUCT_SIZE)
        args.event = self.event
        error = future.exception()
        if error is None:
            data = bytes(future.result())
            self.slot.data = <char *>malloc(len(data) or 1)
            memcpy(self.slot.data, <char *>data, len(data))
            self.slot.size = len(data)
        else:
            message = error.message.encode()
            args.error_code = <PJRT_Error_Code><int>error.code
            args.error_message = message
            args.error_message_size = len(message)
        self.scope.api.call(SLOT_PJRT_Event_Set, &args)  # Buffer.copy_to_remote_device


def send_buffer(BufferCore buffer, descriptor):
    """``Buffer.copy_to_remote_device``."""
    cdef PJRT_Event_Create_Args created
    cdef PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args args
    cdef function_t send = buffer.scope.api.find(SLOT_PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice)
    cdef descriptor_t *slot
    cdef _DescriptorSetter setter = _DescriptorSetter()
    expect(descriptor, Future, "a future of one of the receiver's descriptors")
    start(&args, PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    start(&created, PJRT_Event_Create_Args_STRUCT_SIZE)
    buffer.call(SLOT_PJRT_Event_Create, &created)
    slot = <descriptor_t *>malloc(sizeof(descriptor_t))
    slot.data = NULL
    slot.size = 0
    done = Promise()
    args.event = created.event
    args.serialized_descriptor = &slot.data
    args.serialized_descriptor_size = &slot.size
    args.on_done.on_done = _on_sent
    args.descriptor_destructor = _free_descriptor
    buffer.hold()
    try:
        args.on_done.user_arg = ticket_for((buffer.scope, done, buffer))
        with nogil:
            (<deleter_t>send)(&args)  # it returns no error: on_done is called with it
    finally:
        buffer.let_go()
    setter.scope = buffer.scope
    setter.event = created.event
    setter.slot = slot
    descriptor.add_done_callback(setter)
    return done.future


cdef void _free_descriptor(char **data, size_t *size) noexcept nogil:
    # The slot that send_buffer made begins with the data.
    free(data[0])
    free(data)


cdef void _on_sent(PJRT_Error *error, c_bool sends_were_enqueued, void *user_arg) noexcept nogil:
    # Any thread, without the GIL; the error is ours.
    if gate_enter():
        _settle(error, user_arg)
        gate_leave()
