"""The part of the CUDA driver API that pyload uses, by ctypes: the simulated GPU's, or a real one's."""

import ctypes
import sys

# The kernel spins for so many ns. The simulated driver takes any image and reads the first parameter.
PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns)
{
  .reg .u64 %rd<5>;
  .reg .pred %p;
  ld.param.u64 %rd1, [ns];
  mov.u64 %rd2, %globaltimer;
AGAIN:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p, %rd4, %rd1;
  @%p bra AGAIN;
  ret;
}
"""

_HANDLE = ctypes.c_void_p
_OUT = ctypes.c_void_p
_DEVICE = ctypes.c_uint64
_UINT = ctypes.c_uint
_SIZE = ctypes.c_size_t

NOT_READY = 600

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_FUNCTIONS = {
    "cuInit": [_UINT],
    "cuDeviceGetCount": [_OUT],
    "cuDevicePrimaryCtxRetain": [_OUT, ctypes.c_int],
    "cuCtxSetCurrent": [_HANDLE],
    "cuStreamCreate": [_OUT, _UINT],
    "cuStreamSynchronize": [_HANDLE],
    "cuStreamWaitEvent": [_HANDLE, _HANDLE, _UINT],
    "cuEventCreate": [_OUT, _UINT],
    "cuEventQuery": [_HANDLE],
    "cuEventRecord": [_HANDLE, _HANDLE],
    "cuEventSynchronize": [_HANDLE],
    "cuModuleLoadData": [_OUT, ctypes.c_char_p],
    "cuModuleUnload": [_HANDLE],
    "cuModuleGetFunction": [_OUT, _HANDLE, ctypes.c_char_p],
    "cuLaunchKernel": [_HANDLE] + [_UINT] * 7 + [_HANDLE, _HANDLE, _HANDLE],
    "cuLaunchHostFunc": [_HANDLE, HOST_FUNCTION, _HANDLE],
    "cuMemAlloc_v2": [_OUT, _SIZE],
    "cuMemFree_v2": [_DEVICE],
    "cuMemHostAlloc": [_OUT, _SIZE, _UINT],
    "cuMemFreeHost": [_HANDLE],
    "cuMemcpyHtoDAsync_v2": [_DEVICE, _HANDLE, _SIZE, _HANDLE],
    "cuMemcpyDtoHAsync_v2": [_HANDLE, _DEVICE, _SIZE, _HANDLE],
}


class Driver:
    """Every function of the driver that is called here, by its name without the version; an error ends the program."""

    def __init__(self):
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            hint = "for the simulated GPU, run `make simgpu` and set LD_LIBRARY_PATH=target/simgpu"
            sys.exit("pyload: %s\nhint: %s" % (error, hint))
        for symbol, arguments in _FUNCTIONS.items():
            function = getattr(library, symbol)
            function.argtypes = arguments
            function.restype = ctypes.c_int
            function.errcheck = _check
            setattr(self, symbol[:-3] if symbol.endswith("_v2") else symbol, function)

    def made(self, function, *arguments, kind=_HANDLE):
        """What a function writes to its first argument."""
        out = kind()
        function(ctypes.addressof(out), *arguments)
        return out.value


def _check(result, function, _arguments):
    if result and result != NOT_READY:
        sys.exit("pyload: CUDA error %d: %s" % (result, function.__name__))
    return result


class Gpu:
    """A device with what the load needs on it. The driver is initialised once in a process, for all devices."""

    _driver = None

    def __init__(self, device=0):
        if Gpu._driver is None:
            Gpu._driver = Driver()
            Gpu._driver.cuInit(0)
        self.cu = Gpu._driver
        if device >= self.cu.made(self.cu.cuDeviceGetCount, kind=ctypes.c_int):
            sys.exit("pyload: there is no device %d (GDIAG_SIM_DEVICES=2)" % device)
        self.context = self.cu.made(self.cu.cuDevicePrimaryCtxRetain, device)
        self.use()
        self.stream = self.cu.made(self.cu.cuStreamCreate, 1)  # CU_STREAM_NON_BLOCKING
        self.module = self.cu.made(self.cu.cuModuleLoadData, PTX)
        self.kernel = self.cu.made(self.cu.cuModuleGetFunction, self.module, b"spin")
        self._parameters = {}

    def use(self):
        """Makes the context current for the calling thread."""
        self.cu.cuCtxSetCurrent(self.context)

    def spin(self, ns):
        """Launches a kernel of that length."""
        parameters = self._parameters.get(ns)
        if parameters is None:
            value = ctypes.c_uint64(ns)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
            parameters = self._parameters[ns] = (pointers, value)
        self.cu.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters[0], None)

    def synchronize(self):
        self.cu.cuStreamSynchronize(self.stream)

    def event(self):
        return self.cu.made(self.cu.cuEventCreate, 2)  # CU_EVENT_DISABLE_TIMING

    def memory(self, size):
        """Address of new device memory."""
        return self.cu.made(self.cu.cuMemAlloc, size, kind=_DEVICE)

    def pinned(self, size):
        """Address of new host memory that the device can read."""
        return self.cu.made(self.cu.cuMemHostAlloc, size, 0)
