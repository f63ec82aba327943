grep -E "^TcpExt" /proc/net/netstat > /tmp/a; cat /proc/net/softnet_stat
pollux lab run softnet.toml --quick --blocks 3 --seed 1 --out /tmp/ovout > /tmp/ovlog 2>&1; tail -5 /tmp/ovlog
grep -E "^TcpExt" /proc/net/netstat > /tmp/b; cat /proc/net/softnet_stat; grep -E "^Tcp:" /proc/net/snmp
cat /tmp/a; cat /tmp/b; cat /proc/net/sockstat
