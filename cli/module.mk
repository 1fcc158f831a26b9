# SPDX-License-Identifier: Apache-2.0
# The command line `af`: works offline, from the site file alone.
CLI_OBJECTS := $(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard cli/*.cc))
$(BUILD)/bin/af: $(CLI_OBJECTS) $(BUILD)/obj/libcommon.a
	$(LINK) $(COMMON_LIBS)
# $$: this file is read before common/module.mk.
$(eval $(call unit_test,cli,$(filter-out %/main.o,$(CLI_OBJECTS)) $(BUILD)/obj/libcommon.a,$$(COMMON_LIBS)))
ALL += $(BUILD)/bin/af
