# Makes the file, the loop device and the volume group, or finds again what there is of them: after a reboot, after a
# start that was interrupted, after a change of SIZE. Nothing is made smaller, and nothing removed that holds an LV.

# check_space BYTES: fails if the file cannot get as large as SIZE. It has these bytes already.
check_space() {
  # Free blocks, all blocks, bytes of a block
  set -- "$1" $(stat -f -c '%a %b %S' "$directory")
  # kubelet evicts pods when a tenth is left
  space=$(($1 + $2 * $4 - $3 * $4 / 10))
  [ "$space" -ge "$SIZE" ] || fail "$file can have at most $((space > 0 ? space >> 20 : 0)) MiB: the free" \
    "space of its filesystem, less the tenth below which the kubelet evicts pods; use a smaller --size, or another" \
    "filesystem with --directory"
}

# Names what is left of a file that somebody has deleted, or releases it if there is no LV in it.
repair_deleted() {
  volumes=$(list_volumes)
  [ -z "$volumes" ] || fail "$file was deleted, and its data is lost when $1 is detached, at the latest with the next" \
    "reboot. It contains these volumes: $volumes. Save their data, delete their claims, and run kubectl topolvm" \
    "trial --remove"
  echo "releasing $1, whose file was deleted"
  release "$1"
}

attach() {
  group_device=$(lvm pvs --noheadings -o pv_name -S "vg_name=$GROUP" | join_words)
  [ -z "$group_device" ] || fail "the volume group $GROUP already exists on $group_device, not in $file; rename it" \
    "with vgrename $GROUP NAME, or remove it"
  if [ ! -e "$file" ]; then
    check_space 0
    echo "creating the sparse file $file of $((SIZE >> 20)) MiB"
    # Mode 0600: it has what the volumes have
    (umask 077 && truncate -s "$SIZE" "$file")
  fi
  losetup -f "$file" || fail "no loop device is available for $file; load the kernel module loop (modprobe loop)"
}

# Makes the physical volume and the volume group, where they are not there yet.
make_group() {
  group=
  if lvm pvs "$device" >/dev/null 2>&1; then
    group=$(lvm pvs --noheadings -o vg_name "$device" | join_words)
  else
    lvm pvcreate -qq "$device" </dev/null || fail "LVM rejects $device, the loop device of $file; check" \
      "filter and global_filter in /etc/lvm/lvm.conf, or remove the file if it was not created by kubectl topolvm trial"
  fi
  case $group in
  "")
    echo "creating the volume group $GROUP on $device"
    lvm vgcreate -qq --addtag "$TAG" "$GROUP" "$device" </dev/null
    ;;
  "$GROUP") ;;
  *)
    fail "$file contains the volume group $group and not $GROUP; rename it with vgrename $group $GROUP, or remove the" \
      "file"
    ;;
  esac
}

# Makes the file, the device and the physical volume as large as SIZE, if they are smaller.
grow() {
  [ "$(stat -c %s "$file")" -lt "$SIZE" ] || return 0
  check_space $(($(stat -c %b "$file") * 512))
  echo "growing $file to $((SIZE >> 20)) MiB"
  truncate -s "$SIZE" "$file"
  losetup -c "$device"
  lvm pvresize -qq "$device" </dev/null
}

if [ ! -d "$directory" ]; then
  (umask 077 && mkdir -p "$directory")
  directory=$(cd "$directory" && pwd -P)
  file=$directory/$GROUP.img
fi
deleted=$(find_loop_device "$file (deleted)")
[ -z "$deleted" ] || repair_deleted "$deleted"
device=$(find_loop_device "$file")
if [ -z "$device" ]; then
  attach
  device=$(find_loop_device "$file")
  [ -n "$device" ] || fail "cannot find the loop device of $file in /sys/block; $file may be a symbolic link"
fi
make_group
grow
lvm vgchange -qq -ay "$GROUP" </dev/null
echo "the volume group $GROUP is on $device, the loop device of $file"
