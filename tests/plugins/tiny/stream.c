/* The stream through which a host callback fills a value on the device. */
#include "tiny.h"

struct PJRT_CopyToDeviceStream {
  pthread_mutex_t mutex;
  char *data;
  int64_t total, granule, current;
  tiny_promise *complete;
};

tiny_status *stream_receive(const PJRT_RecvCallbackInfo *info, char *data, size_t size, size_t granule) {
  PJRT_CopyToDeviceStream *stream = tiny_calloc(1, sizeof *stream);
  pthread_mutex_init(&stream->mutex, NULL);
  stream->data = data;
  stream->total = (int64_t)size;
  stream->granule = granule ? (int64_t)granule : 1;
  stream->complete = promise_make();
  tiny_promise *complete = promise_ref(stream->complete);
  if (size == 0) promise_set(complete, NULL);
  live_add(LIVE_STREAM, 1);
  info->recv_callback(stream, info->user_arg); /* the stream is the callback's from here on */
  tiny_status *status = status_ref(promise_wait(complete));
  promise_unref(complete);
  return status;
}

PJRT_Error *tiny_CopyToDeviceStream_Destroy(PJRT_CopyToDeviceStream_Destroy_Args *args) {
  PJRT_CopyToDeviceStream *stream = args->stream;
  if (stream == NULL) return NULL;
  promise_set(stream->complete, status_make(PJRT_Error_Code_ABORTED,
                                            "The stream was destroyed with %lld of %lld bytes sent",
                                            (long long)stream->current, (long long)stream->total));
  promise_unref(stream->complete);
  pthread_mutex_destroy(&stream->mutex);
  free(stream);
  live_add(LIVE_STREAM, -1);
  return NULL;
}

PJRT_Error *tiny_CopyToDeviceStream_AddChunk(PJRT_CopyToDeviceStream_AddChunk_Args *args) {
  PJRT_CopyToDeviceStream *stream = args->stream;
  PJRT_Chunk *chunk = args->chunk;
  tiny_status *status = NULL;
  bool complete = false;
  pthread_mutex_lock(&stream->mutex);
  if ((int64_t)chunk->size % stream->granule) {
    status = status_make(INVALID, "A chunk of %zu bytes is no multiple of the granule of %lld bytes", chunk->size,
                         (long long)stream->granule);
  } else if ((int64_t)chunk->size > stream->total - stream->current) {
    status = status_make(INVALID, "A chunk of %zu bytes does not fit: %lld of %lld bytes are there", chunk->size,
                         (long long)stream->current, (long long)stream->total);
  } else if (chunk->size) {
    memcpy(stream->data + stream->current, chunk->data, chunk->size);
    stream->current += (int64_t)chunk->size;
    complete = stream->current == stream->total;
  }
  pthread_mutex_unlock(&stream->mutex);
  if (chunk->deleter) chunk->deleter(chunk->data, chunk->deleter_arg);
  if (status) return error_from(status);
  tiny_promise *done = promise_done(NULL);
  args->transfer_complete = event_make(done, F_CopyToDeviceStream_AddChunk);
  promise_unref(done);
  if (complete) promise_set(stream->complete, NULL);
  return NULL;
}

PJRT_Error *tiny_CopyToDeviceStream_TotalBytes(PJRT_CopyToDeviceStream_TotalBytes_Args *args) {
  args->total_bytes = args->stream->total;
  return NULL;
}

PJRT_Error *tiny_CopyToDeviceStream_GranuleSize(PJRT_CopyToDeviceStream_GranuleSize_Args *args) {
  args->granule_size_in_bytes = args->stream->granule;
  return NULL;
}

PJRT_Error *tiny_CopyToDeviceStream_CurrentBytes(PJRT_CopyToDeviceStream_CurrentBytes_Args *args) {
  pthread_mutex_lock(&args->stream->mutex);
  args->current_bytes = args->stream->current;
  pthread_mutex_unlock(&args->stream->mutex);
  return NULL;
}
