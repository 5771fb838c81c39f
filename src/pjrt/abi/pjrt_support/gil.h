/* The GIL: whether the running thread holds it, and releasing it while the thread waits. */
#ifndef PJRT_SUPPORT_GIL_H_
#define PJRT_SUPPORT_GIL_H_

#include <Python.h>
#include <stdbool.h>

/* Whether this thread holds the GIL. PyGILState_Check returns true for every thread once there was a second
 * interpreter. */
static inline bool pjrt_gil_is_held(void) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_GetUnchecked() != NULL;
#elif PY_VERSION_HEX >= 0x030C0000
  return _PyThreadState_UncheckedGet() != NULL;
#else
  PyThreadState *running = _PyThreadState_UncheckedGet();
  return running != NULL && running == PyGILState_GetThisThreadState();
#endif
}

/* Releases the GIL if this thread holds it; the result is the argument of pjrt_gil_take_back. */
static inline PyThreadState *pjrt_gil_let_go(void) { return pjrt_gil_is_held() ? PyEval_SaveThread() : NULL; }

static inline void pjrt_gil_take_back(PyThreadState *state) {
  if (state != NULL) PyEval_RestoreThread(state);
}

#endif /* PJRT_SUPPORT_GIL_H_ */
