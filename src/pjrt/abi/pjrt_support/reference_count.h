/* How many references an object has: exact on every Python, where no other thread is adding or dropping one. */
#ifndef PJRT_SUPPORT_REFERENCE_COUNT_H_
#define PJRT_SUPPORT_REFERENCE_COUNT_H_

#include <Python.h>

static inline Py_ssize_t pjrt_reference_count(PyObject *object) {
#ifdef Py_GIL_DISABLED
  /* The references of the thread that made the object are counted apart from those of all others. A reference that is
   * handed over between the two reads would be missed, so the first count is read again. */
  const uint32_t local = _Py_atomic_load_uint32_relaxed(&object->ob_ref_local);
  if (local == _Py_IMMORTAL_REFCNT_LOCAL) return PY_SSIZE_T_MAX;
  for (;;) {
    const Py_ssize_t before = _Py_atomic_load_ssize_acquire(&object->ob_ref_shared);
    const uint32_t own = _Py_atomic_load_uint32_relaxed(&object->ob_ref_local);
    const Py_ssize_t after = _Py_atomic_load_ssize_acquire(&object->ob_ref_shared);
    if (before == after) return (Py_ssize_t)own + Py_ARITHMETIC_RIGHT_SHIFT(Py_ssize_t, after, _Py_REF_SHARED_SHIFT);
  }
#else
  return Py_REFCNT(object);
#endif
}

#endif /* PJRT_SUPPORT_REFERENCE_COUNT_H_ */
