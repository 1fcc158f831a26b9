# SPDX-License-Identifier: Apache-2.0
# af-launch: starts the ranks of a job, gives them what they need, and ends with them.
# libmpi is not linked: the MPI bootstrap is a module of its own, opened with dlopen.
LAUNCHER_LIBS := -lhwloc -lcrypto -ldl -lpthread $(COMMON_LIBS)
LAUNCHER_SOURCES := $(filter-out launcher/main.cc launcher/mpi_bootstrap_module.cc,$(wildcard launcher/*.cc))
$(BUILD)/obj/launcher/%.o $(BUILD)/obj/tests/unit/launcher/%.o: CPPFLAGS += -DASIO_STANDALONE -DASIO_NO_DEPRECATED

$(eval $(call archive,launcher,$(LAUNCHER_SOURCES)))
$(BUILD)/bin/af-launch: $(BUILD)/obj/launcher/main.o $(BUILD)/obj/liblauncher.a $(BUILD)/obj/libcommon.a
	$(LINK) $(LAUNCHER_LIBS)
ALL += $(BUILD)/bin/af-launch

# Keeps srun from acting on signals that were not meant for it (srun_shield/srun_shield.c says why).
$(BUILD)/lib/libaf_srun_shield.so: $(BUILD)/obj/launcher/srun_shield/srun_shield.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^ -ldl
ALL += $(BUILD)/lib/libaf_srun_shield.so

$(eval $(call unit_test,launcher,$(BUILD)/obj/liblauncher.a $(BUILD)/obj/libcommon.a,$(LAUNCHER_LIBS)))
# Machines without GPUs have no NVML to test with.
$(BUILD)/tests/fake-nvml/libnvidia-ml.so.1: $(BUILD)/obj/tests/unit/launcher/fake_nvml/fake_nvml.o
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -o $@ $^
$(BUILD)/tests/unit/launcher: | $(BUILD)/tests/fake-nvml/libnvidia-ml.so.1

# A satellite pool against a real Slurm (tests/cluster/test_satellites.py).
$(BUILD)/obj/tests/programs/drive_satellites.o: CPPFLAGS += -DASIO_STANDALONE -DASIO_NO_DEPRECATED
$(BUILD)/tests/programs/drive_satellites: $(BUILD)/obj/tests/programs/drive_satellites.o $(BUILD)/obj/liblauncher.a $(BUILD)/obj/libcommon.a
	$(LINK) $(LAUNCHER_LIBS)
TEST_PROGRAMS += $(BUILD)/tests/programs/drive_satellites

# Modules that are not linked into af-launch: the MPI bootstrap, the signal shield of the ranks.
include $(wildcard launcher/*/module.mk)
