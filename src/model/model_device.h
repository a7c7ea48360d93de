/*
 * ggml's devices: their libraries loaded when they are asked for, listed, and found by name.
 *
 * ggml keeps its list of backends for the whole process. Looking for the CPU loads only the library that fits this
 * processor best: drivers of graphics cards take time, memory and sometimes a card, and a run on the CPU must cost none
 * of it. Any other name, and the list, load every library of the folder.
 */
#ifndef MODEL_DEVICE_H
#define MODEL_DEVICE_H

#include "base/err.h"

#include <ggml-backend.h>
#include <stddef.h>
#include <stdint.h>

/* The CPU with weights copied into memory of its own, as a device has them: for tests of that path, and for models on a
 * file system that is too slow to stay mapped. */
#define MODEL_DEVICE_CPU_COPY "cpu-copy"

struct model_device_info {
    char name[64];         /* what model_device_find takes */
    char description[128]; /* of the hardware */
    const char *kind;      /* "CPU", "GPU", "integrated GPU", "accelerator" */
    uint64_t free, total;  /* bytes of memory; 0 when the device does not tell */
};

/*
 * dir: folder with ggml's backend libraries. name: "cpu", "cpu-copy", "auto" (the first graphics card, else the first
 * integrated one, else the CPU) or a device's name, in any case of letters. ENOENT names the devices there are.
 */
strata_err model_device_find(const char *dir, const char *name, ggml_backend_dev_t *out, struct strata_errmsg *em);

/* All devices that can run a model, the CPU first. Free *out. */
strata_err model_device_list(const char *dir, struct model_device_info **out, size_t *n, struct strata_errmsg *em);

#endif
