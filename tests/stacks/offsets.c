// SPDX-License-Identifier: Apache-2.0
/*
 * Prints where CPython 3.8 to 3.12 keeps what src/collect/python.rs lists by hand, by the names
 * of struct gdiag_py_offsets, for the release whose headers it is compiled with:
 *
 *   cc -I$include -I$include/internal tests/stacks/offsets.c
 */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#if PY_MINOR_VERSION < 11
#include <frameobject.h>
#endif
#if PY_MINOR_VERSION == 8
#include "internal/pycore_pystate.h"
#else
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#endif
#if PY_MINOR_VERSION >= 11
#include "internal/pycore_frame.h"
#endif

#define AT(name, type, field) printf("%s %zu\n", name, offsetof(type, field))

int main(void)
{
	AT("runtime_interpreters", _PyRuntimeState, interpreters.head);
	AT("interp_next", PyInterpreterState, next);
	AT("thread_next", PyThreadState, next);
	AT("thread_interp", PyThreadState, interp);
	AT("thread_id", PyThreadState, thread_id);
#if PY_MINOR_VERSION < 12
	AT("gil_locked", _PyRuntimeState, ceval.gil.locked);
	AT("gil_holder", _PyRuntimeState, ceval.gil.last_holder);
#else
	AT("interp_gil", PyInterpreterState, ceval.gil);
	AT("gil_locked", struct _gil_runtime_state, locked);
	AT("gil_holder", struct _gil_runtime_state, last_holder);
#endif
#if PY_MINOR_VERSION == 8
	AT("gc_collecting", _PyRuntimeState, gc.collecting);
#else
	AT("gc_collecting", PyInterpreterState, gc.collecting);
#endif
#if PY_MINOR_VERSION < 11
	AT("interp_threads", PyInterpreterState, tstate_head);
	AT("thread_frame", PyThreadState, frame);
	AT("frame_previous", PyFrameObject, f_back);
	AT("frame_code", PyFrameObject, f_code);
	AT("frame_instr", PyFrameObject, f_lasti);
	AT("code_name", PyCodeObject, co_name);
#else
	AT("interp_threads", PyInterpreterState, threads.head);
	AT("thread_native_id", PyThreadState, native_thread_id);
	AT("thread_frame", PyThreadState, cframe);
	AT("cframe_frame", _PyCFrame, current_frame);
	AT("frame_previous", _PyInterpreterFrame, previous);
	AT("frame_code", _PyInterpreterFrame, f_code);
	AT("frame_instr", _PyInterpreterFrame, prev_instr);
#if PY_MINOR_VERSION == 11
	AT("frame_owner", _PyInterpreterFrame, is_entry);
#else
	AT("frame_owner", _PyInterpreterFrame, owner);
#endif
	AT("code_name", PyCodeObject, co_qualname);
	AT("code_bytecode", PyCodeObject, co_code_adaptive);
#endif
	AT("code_filename", PyCodeObject, co_filename);
	AT("code_first_line", PyCodeObject, co_firstlineno);
#if PY_MINOR_VERSION < 10
	AT("code_lines", PyCodeObject, co_lnotab);
#else
	AT("code_lines", PyCodeObject, co_linetable);
#endif
	AT("text_length", PyASCIIObject, length);
	AT("text_state", PyASCIIObject, state);
	printf("text_ascii %zu\n", sizeof(PyASCIIObject));
	printf("text_compact %zu\n", sizeof(PyCompactUnicodeObject));
	AT("bytes_size", PyVarObject, ob_size);
	AT("bytes_data", PyBytesObject, ob_sval);
	return 0;
}
