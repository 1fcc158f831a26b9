# SPDX-License-Identifier: Apache-2.0
# The training library for C++ programs, on libtorch and HDF5. Only it and the examples link torch.
#   make TORCH_DIR=/path/to/libtorch   another libtorch than Debian's, such as the one of a PyTorch
#                                      wheel: …/site-packages/torch
TORCH_DIR ?=
comma := ,
TORCH_PREFIX := $(if $(TORCH_DIR),$(TORCH_DIR),/usr)
TORCH_LIBDIR := $(if $(TORCH_DIR),$(TORCH_DIR)/lib,)
# -isystem: torch's own headers do not pass our warnings.
ifneq ($(TORCH_DIR),)
# A wheel's include/ has a copy of fmt, another version than the libfmt that we link: ours goes first.
$(shell mkdir -p $(BUILD)/obj/headers && ln -sfn /usr/include/fmt $(BUILD)/obj/headers/fmt)
endif
TORCH_CPPFLAGS := $(if $(TORCH_DIR),-isystem $(BUILD)/obj/headers -isystem $(TORCH_PREFIX)/include) \
  -isystem $(TORCH_PREFIX)/include/torch/csrc/api/include
TORCH_LIBS := $(if $(TORCH_LIBDIR),-L$(TORCH_LIBDIR) -Wl$(comma)-rpath$(comma)$(TORCH_LIBDIR)) -ltorch -ltorch_cpu -lc10
HDF5_CPPFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags hdf5 2>/dev/null))
HDF5_LIBS := $(shell pkg-config --libs hdf5 2>/dev/null)
TRAIN_LIBS := $(TORCH_LIBS) $(HDF5_LIBS) -ldeflate -lz -lcurl -lfmt

# A folder uses those behind it, not those before it.
TRAIN_FOLDERS := parallel metrics data checkpoint
TRAIN_SOURCES := $(foreach folder,$(TRAIN_FOLDERS),$(wildcard train/$(folder)/*.cc))
TRAIN_ARCHIVES := $(foreach folder,$(TRAIN_FOLDERS),$(BUILD)/obj/libtrain_$(folder).a)
$(BUILD)/obj/train/%.o $(BUILD)/obj/tests/unit/train_%.o: CPPFLAGS += $(TORCH_INCLUDE) $(HDF5_CPPFLAGS)

# libtorch's headers are compiled once (train/precompiled.h); with line numbers, not types, for the debugger:
# together a quarter of the time. Whoever uses TORCH_INCLUDE is in TORCH_OBJECTS.
TORCH_PRECOMPILED := $(BUILD)/obj/train/precompiled.h
TORCH_BENCHMARKS := checkpoint_pause pipeline_step fsdp_step ddp_step hdf5_read overlap_step
TORCH_INCLUDE = -include $(TORCH_PRECOMPILED) $(TORCH_CPPFLAGS)
TORCH_OBJECTS := $(patsubst %.cc,$(BUILD)/obj/%.o,$(TRAIN_SOURCES) $(wildcard tests/unit/train_*/*.cc) \
  $(filter-out examples/cpp/allreduce/%,$(wildcard examples/cpp/*/*.cc)) $(TORCH_BENCHMARKS:%=bench/%.cc))
$(BUILD)/obj/train/%.o $(BUILD)/obj/tests/unit/train_%.o $(BUILD)/obj/examples/cpp/%.o: CXXFLAGS += -g1
$(TORCH_BENCHMARKS:%=$(BUILD)/obj/bench/%.o): CPPFLAGS += $(TORCH_INCLUDE)
$(TORCH_BENCHMARKS:%=$(BUILD)/obj/bench/%.o): CXXFLAGS += -g1
$(TORCH_PRECOMPILED).gch: CPPFLAGS += $(TORCH_CPPFLAGS) $(HDF5_CPPFLAGS)
$(TORCH_PRECOMPILED).gch: CXXFLAGS += -g1
$(TORCH_PRECOMPILED).gch: train/precompiled.h
	@mkdir -p $(@D); echo "  PCH   $<"
	@cp $< $(TORCH_PRECOMPILED); $(CXX) $(CPPFLAGS) $(CXXFLAGS) -x c++-header -o $@.$$$$ $< && mv $@.$$$$ $@
$(TORCH_OBJECTS): | $(TORCH_PRECOMPILED).gch

# The same bits on every CPU, and loops that the vector units can do; threads (train/parallel/flat_*.cc).
$(BUILD)/obj/train/parallel/flat_kernels.o: CXXFLAGS += -O3 -ffp-contract=off -fno-math-errno
$(BUILD)/obj/train/parallel/flat_threads.o: CXXFLAGS += -fopenmp
TRAIN_LIBS += -lgomp

$(foreach folder,$(TRAIN_FOLDERS),$(eval $(call archive,train_$(folder),$(wildcard train/$(folder)/*.cc))))
$(BUILD)/lib/libaf_train.so: $(patsubst %.cc,$(BUILD)/obj/%.o,$(TRAIN_SOURCES)) $(BUILD)/obj/libcommon.a $(BUILD)/lib/libaf_collectives.so
	$(LINK) -shared -Wl,-soname,libaf_train.so -Wl,-rpath,'$$ORIGIN' -L$(BUILD)/lib -laf_collectives $(TRAIN_LIBS)
ALL += $(BUILD)/lib/libaf_train.so

# The tests look inside the libraries, so they take their objects and not the .so. One program for each
# folder tests/unit/train_*, so that a change in one room links and runs its own tests only.
TRAIN_TEST_ARCHIVES := $(TRAIN_ARCHIVES) $(BUILD)/obj/libcollectives.a $(BUILD)/obj/libcommon.a
TRAIN_TEST_OBJECTS := $(BUILD)/obj/tests/unit/world/fake_agent.o $(BUILD)/obj/tests/unit/collectives/world.o
$(foreach tests,$(notdir $(wildcard tests/unit/train_*)),$(eval $(call unit_test,$(tests),$(TRAIN_TEST_OBJECTS) $(TRAIN_TEST_ARCHIVES),$(TRAIN_LIBS) -ldl)))

$(BUILD)/obj/bench/hdf5_read.o: CPPFLAGS += $(HDF5_CPPFLAGS)
$(foreach name,$(TORCH_BENCHMARKS),$(eval $(call benchmark,$(name),bench/$(name).cc,$(BUILD)/lib/libaf_train.so,\
  -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS) $(HDF5_LIBS) -ldl -lfmt)))

$(BUILD)/tests/programs/logged_training: $(BUILD)/obj/tests/programs/logged_training.o $(BUILD)/lib/libaf_train.so
	$(LINK) -Wl,-rpath,'$$ORIGIN/../../lib' -L$(BUILD)/lib -laf_train -laf_collectives $(TORCH_LIBS) -lfmt
TEST_PROGRAMS += $(BUILD)/tests/programs/logged_training
