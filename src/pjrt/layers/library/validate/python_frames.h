/* The lines of Python that the running thread is in, where Python runs in the process. */
#ifndef PJRT_LAYER_VALIDATE_PYTHON_FRAMES_H_
#define PJRT_LAYER_VALIDATE_PYTHON_FRAMES_H_

/* One line a frame, "FILE:LINE in FUNCTION", innermost first; null where there is none. The caller frees the text. */
char *pjrt_python_frames(void);

#endif /* PJRT_LAYER_VALIDATE_PYTHON_FRAMES_H_ */
