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

# Its tests run on stand-ins of both libraries, found through the test's RPATH (which, unlike
# RUNPATH, comes before LD_LIBRARY_PATH) before any real one.
ifneq ($(CUDA_CPPFLAGS),)
comma := ,
FAKE_CUDA := $(BUILD)/tests/fake_cuda
CUDART_MAJOR := $(shell awk '/^.define CUDART_VERSION /{print int($$3/1000)}' $(CUDA_DIR)/include/cuda_runtime_api.h)
$(BUILD)/obj/tests/unit/nccl/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
$(BUILD)/obj/tests/unit/nccl/fake/%.o: CXXFLAGS += -fvisibility=default
$(FAKE_CUDA)/libcudart.so.$(CUDART_MAJOR): $(BUILD)/obj/tests/unit/nccl/fake/cudart.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CXX) $(CXXFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -o $@ $< -lpthread
$(FAKE_CUDA)/libnccl.so.2: $(BUILD)/obj/tests/unit/nccl/fake/nccl.o $(FAKE_CUDA)/libcudart.so.$(CUDART_MAJOR)
	@mkdir -p $(@D); echo "  LINK  $@"; $(CXX) $(CXXFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^
$(eval $(call unit_test,nccl,\
  $(BUILD)/obj/perf/pattern.o $(BUILD)/obj/perf/words.o $(BUILD)/obj/libcollectives.a \
  $(BUILD)/obj/libcommon.a $(FAKE_CUDA)/libnccl.so.2 $(FAKE_CUDA)/libcudart.so.$(CUDART_MAJOR),\
  $(FAKE_CUDA)/libnccl.so.2 $(FAKE_CUDA)/libcudart.so.$(CUDART_MAJOR) \
  -Wl$(comma)--disable-new-dtags$(comma)-rpath$(comma)'$$$$ORIGIN/../fake_cuda' -lfmt -ldl))
endif
