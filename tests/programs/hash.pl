# A hash of strings: built, half of it deleted, grown again, sorted and summed.
use strict;
use warnings;

my ($count) = @ARGV;
my (%table, $sum);
$table{"key $_ of the table"} = "value " x ($_ % 7) . $_ for 1 .. $count;
delete $table{"key $_ of the table"} for grep { $_ % 2 } 1 .. $count;
$table{"new $_"} = [$_, "text $_", { n => $_ }] for 1 .. $count / 2;
for my $key (sort keys %table) {
    my $value = $table{$key};
    $sum = (($sum // 0) * 31 + length($key) + (ref $value ? $value->[2]{n} : length $value)) % 1000000007;
}
print scalar(keys %table), " keys, checksum $sum\n";
