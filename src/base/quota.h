/* How much processor time a container gives: threads beyond it only wait for each other to be let on. */
#ifndef CALLA_BASE_QUOTA_H
#define CALLA_BASE_QUOTA_H

/* Processors whose time this process may use, rounded up; 0 without a limit, or where none can be read. It is
 * the least of what its control groups (Linux, versions 1 and 2) and those above them allow. `root` stands
 * before every path that is read: "" for the machine itself. */
int processor_quota(const char *root);

#endif
