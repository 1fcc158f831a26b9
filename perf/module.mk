# SPDX-License-Identifier: Apache-2.0
# af-perf: measures the collective operations; uses the library as any program does.
comma := ,
PERF_SOURCES := $(filter-out perf/main.cc,$(wildcard perf/*.cc))
$(BUILD)/obj/perf/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)
PERF_OBJECTS := $(PERF_SOURCES:%.cc=$(BUILD)/obj/%.o) \
  $(if $(CUDA_CPPFLAGS),$(BUILD)/obj/collectives/cuda/runtime.o)

$(BUILD)/bin/af-perf: $(BUILD)/obj/perf/main.o $(PERF_OBJECTS) $(BUILD)/obj/libcommon.a $(BUILD)/lib/libaf_collectives.so
	$(LINK) -L$(BUILD)/lib -laf_collectives -Wl,-rpath,'$$ORIGIN/../lib' $(COMMON_LIBS) -ldl -lpthread
ALL += $(BUILD)/bin/af-perf

$(eval $(call unit_test,perf,$(PERF_OBJECTS) $(BUILD)/obj/libcommon.a $(BUILD)/lib/libaf_collectives.so,\
  -L$(BUILD)/lib -laf_collectives -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../../lib' $(COMMON_LIBS) -ldl))
