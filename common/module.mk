# SPDX-License-Identifier: Apache-2.0
# What every part of af uses: errors, files, settings, the site file. No Slurm, no torch, no MPI.
COMMON_LIBS := -lyaml-cpp -lspdlog -lfmt
$(BUILD)/obj/common/%.o $(BUILD)/obj/launcher/%.o $(BUILD)/obj/spank/%.o: CPPFLAGS += -DSPDLOG_FMT_EXTERNAL -DSPDLOG_COMPILED_LIB
$(eval $(call archive,common,$(wildcard common/*.cc)))
$(eval $(call unit_test,common,$(BUILD)/obj/libcommon.a,$(COMMON_LIBS)))
$(BUILD)/tests/programs/expand_hostlist: $(BUILD)/obj/tests/programs/expand_hostlist.o $(BUILD)/obj/libcommon.a
	$(LINK) $(COMMON_LIBS)
TEST_PROGRAMS += $(BUILD)/tests/programs/expand_hostlist
