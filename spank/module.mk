# SPDX-License-Identifier: Apache-2.0
# The SPANK plugin. It is loaded into sbatch, srun, salloc, slurmd and slurmstepd beside plugins that
# we do not know, so it needs libc and nothing else: libstdc++, libgcc and yaml-cpp are inside, fmt
# is header-only, and spank_af.map shows only the SPANK symbols.
# One build serves one Slurm major.minor.
SPANK_COMMON := error atomic_file settings nearest_name site native_options gpu_choice request \
  explain batch_script here_document paths
SPANK_OBJECTS = $(patsubst spank/%.cc,$(BUILD)/obj/spank/%.o,$(filter-out spank/plugin.cc,$(wildcard spank/*.cc))) \
  $(patsubst %,$(BUILD)/obj/spank-common/%.o,$(SPANK_COMMON)) $(BUILD)/obj/spank/single_threaded.o
SPANK_FLAGS := -DFMT_HEADER_ONLY -ffunction-sections -fdata-sections
# Moved into place: a running Slurm never opens half a file.
SPANK_LINK = @mkdir -p $(@D); echo "  LINK  $@"; $(CXX) $(CXXFLAGS) $(LDFLAGS) -shared -o $@.new \
  $(filter %.o,$^) -l:libyaml-cpp.a -static-libstdc++ -static-libgcc \
  -Wl,--gc-sections -Wl,-z,text -Wl,-z,defs -Wl,--version-script=spank/spank_af.map && mv $@.new $@

$(BUILD)/obj/spank/%.o: CPPFLAGS += $(SPANK_FLAGS)
# common/ once more, with fmt inside.
$(BUILD)/obj/spank-common/%.o: common/%.cc
	@mkdir -p $(@D); echo "  CXX   $< (for the plugin)"
	@$(CXX) $(CPPFLAGS) $(SPANK_FLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/lib/slurm/spank_af.so: $(BUILD)/obj/spank/plugin.o $(SPANK_OBJECTS) spank/spank_af.map
	$(SPANK_LINK)
ALL += $(BUILD)/lib/slurm/spank_af.so

# A plugin "built for another Slurm" (case B52).
$(BUILD)/obj/spank-other-version/plugin.o: spank/plugin.cc
	@mkdir -p $(@D); echo "  CXX   $< (another Slurm's version)"
	@$(CXX) $(CPPFLAGS) $(SPANK_FLAGS) -DAF_SPANK_VERSION_OVERRIDE='SLURM_VERSION_NUM(20,2,0)' \
	  $(CXXFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/tests/spank_af_other_version.so: $(BUILD)/obj/spank-other-version/plugin.o $(SPANK_OBJECTS) spank/spank_af.map
	$(SPANK_LINK)
TEST_PROGRAMS += $(BUILD)/tests/spank_af_other_version.so

SPANK_TEST_OBJECTS = $(filter-out %/single_threaded.o,$(SPANK_OBJECTS))
$(eval $(call unit_test,spank,$(SPANK_TEST_OBJECTS),-lyaml-cpp -lfmt -ldl))
# The test looks at the file as it is built.
$(BUILD)/tests/unit/spank: | $(BUILD)/lib/slurm/spank_af.so
