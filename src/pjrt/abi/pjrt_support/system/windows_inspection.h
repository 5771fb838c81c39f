/* Windows: the function of inspection.h that is available there. */
#ifndef PJRT_SUPPORT_SYSTEM_WINDOWS_INSPECTION_H_
#define PJRT_SUPPORT_SYSTEM_WINDOWS_INSPECTION_H_

#include "windows.h"

static inline bool pjrt_readable(const pjrt_memory_range *ranges, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const char *place = (const char *)ranges[i].start;
    size_t left = ranges[i].size;
    if ((uintptr_t)place > UINTPTR_MAX - left) return false;
    while (left > 0) {
      MEMORY_BASIC_INFORMATION region;
      if (VirtualQuery(place, &region, sizeof region) == 0 || region.State != MEM_COMMIT) return false;
      if (region.Protect & (PAGE_NOACCESS | PAGE_GUARD)) return false;
      const size_t rest = (size_t)((const char *)region.BaseAddress + region.RegionSize - place);
      if (rest >= left) break;
      place += rest;
      left -= rest;
    }
  }
  return true;
}

#endif /* PJRT_SUPPORT_SYSTEM_WINDOWS_INSPECTION_H_ */
