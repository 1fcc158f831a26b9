# SPDX-License-Identifier: Apache-2.0
# The mpi backend. What calls MPI is a module of its own, opened with dlopen: neither the library
# nor the programs that use it depend on libmpi. Without MPI's headers the module is not built.
comma := ,
COLLECTIVES_SOURCES += $(addprefix collectives/mpi/,backend.cc elements.cc failures.cc load.cc)

MPI_CPPFLAGS ?= $(shell pkg-config --cflags ompi-c 2>/dev/null)
MPI_LIBS ?= $(shell pkg-config --libs ompi-c 2>/dev/null)
ifneq ($(strip $(MPI_LIBS)),)
$(BUILD)/obj/collectives/mpi/module.o: CPPFLAGS += $(MPI_CPPFLAGS)
$(BUILD)/lib/libaf_collectives_mpi.so: $(BUILD)/obj/collectives/mpi/module.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CXX) $(CXXFLAGS) $(LDFLAGS) -shared -o $@ $^ $(MPI_LIBS)
ALL += $(BUILD)/lib/libaf_collectives_mpi.so
# Its ranks open the module.
$(BUILD)/tests/unit/train_mpi: | $(BUILD)/lib/libaf_collectives_mpi.so

$(BUILD)/tests/programs/collective_cases: $(BUILD)/obj/tests/programs/collective_cases.o $(BUILD)/lib/libaf_collectives.so
	$(LINK) -L$(BUILD)/lib -laf_collectives -Wl,-rpath,'$$ORIGIN/../../lib' -ldl
TEST_PROGRAMS += $(BUILD)/tests/programs/collective_cases

$(BUILD)/obj/bench/collective_pair.o $(BUILD)/obj/bench/mpi_pair.o: CPPFLAGS += $(MPI_CPPFLAGS)
$(eval $(call benchmark,collective_pair,bench/collective_pair.cc bench/mpi_pair.cc perf/directory_store.cc,\
  $(BUILD)/obj/libcommon.a $(BUILD)/lib/libaf_collectives.so,\
  -L$(BUILD)/lib -laf_collectives -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib' $(MPI_LIBS) -lfmt))
endif
