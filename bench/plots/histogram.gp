# SPDX-License-Identifier: GPL-2.0
# A histogram, a value's name above each bar.  Set by the caller: data, cases,
# question.  Lines of data are: number, name, hits, text.

set encoding utf8
height = 62 + 42 * cases
set terminal svg size 360, height font "sans-serif,14" noenhanced
set datafile separator "\t"
set lmargin 1
set rmargin 1
set tmargin at screen 1 - 54. / height
set bmargin at screen 8. / height
# as wide as the terminal, at 14 points
split = strlen(question) > 46 ? 46 : strlen(question)
while (split < strlen(question) && question[split:split] ne " ") {
	split = split - 1
}
set label question[1:split]."\n".question[split + 1:] \
	at screen 0.02, screen 1 - 14. / height left
stats data using 3 nooutput
# room for what is behind the longest bar
set xrange [0:1.7 * STATS_max]
set yrange [cases + 0.1:0]
unset xtics
unset ytics
unset key
set border 2

plot data using 3:1:(0):3:($1 - 0.5):($1 - 0.18) \
	with boxxyerror fs solid 1 lc rgb "#1a4a7a" title "hits", \
     data using (0):($1 - 0.72):2 \
	with labels left offset char 0.4, 0 title "values", \
     data using 3:($1 - 0.34):4 \
	with labels left offset char 0.5, 0 title "shares"
