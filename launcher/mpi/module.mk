# SPDX-License-Identifier: Apache-2.0
# libaf_mpi_bootstrap.so: the only thing that links libmpi; af-launch opens it if a site has MPI.
# Flags come from pkg-config, not from mpicxx: that would add the C++ bindings, long removed.
MPI_CPPFLAGS := $(shell pkg-config --cflags ompi-c 2>/dev/null)
MPI_LIBS := $(shell pkg-config --libs ompi-c 2>/dev/null)
ifneq ($(MPI_LIBS),)
$(BUILD)/obj/launcher/mpi/module.o: CPPFLAGS += $(MPI_CPPFLAGS) -DOMPI_SKIP_MPICXX
$(BUILD)/lib/libaf_mpi_bootstrap.so: $(BUILD)/obj/launcher/mpi/module.o
	$(LINK) -shared $(MPI_LIBS)
ALL += $(BUILD)/lib/libaf_mpi_bootstrap.so
endif
