# SPDX-License-Identifier: Apache-2.0
# What needs the headers of CUDA and NCCL: the nccl backend, and the staging of device memory for
# the host backends. The libraries themselves are opened at run time. Without the headers both say
# that they are not there.
CUDA_DIR ?= $(firstword $(wildcard /usr/local/cuda /opt/cuda) /usr/local/cuda)
NCCL_DIR ?= $(CUDA_DIR)
CUDA_HEADER := $(wildcard $(CUDA_DIR)/include/cuda_runtime.h)
NCCL_HEADER := $(firstword $(wildcard $(NCCL_DIR)/include/nccl.h) $(if $(CUDA_HEADER),$(wildcard /usr/include/nccl.h)))
ifneq ($(and $(CUDA_HEADER),$(NCCL_HEADER)),)
# -isystem: NVIDIA's headers are not written for our warnings.
CUDA_CPPFLAGS := -DAF_HAVE_CUDA -isystem $(CUDA_DIR)/include
CUDA_SOURCES := $(wildcard collectives/cuda/*.cc collectives/nccl/*.cc)
else
CUDA_CPPFLAGS :=
CUDA_SOURCES := collectives/without_cuda.cc
endif
COLLECTIVES_SOURCES += $(CUDA_SOURCES)
$(BUILD)/obj/collectives/cuda/%.o $(BUILD)/obj/collectives/nccl/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
