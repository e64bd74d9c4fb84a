# SPDX-License-Identifier: GPL-2.0
# Lines.  Set by the caller: data, its blocks, each headed by a line's name;
# styles, the number of each block's below; xname, yname, yunit; ticks, "2 4 8",
# or "x:name" for others; logx, logy.  Each line has its own dash and mark, so
# that they can be told apart without colours.

set encoding utf8
set micro
height = 280 + 21 * words(styles)
set terminal svg size 360, height font "sans-serif,14" noenhanced
set datafile separator "\t"
set border 3
set grid lc rgb "#cccccc" dt 3
set key at screen 0.04, screen 0.99 top left Left reverse samplen 3.2 spacing 1.1
set rmargin 2.5
set lmargin 8
set xlabel xname offset 0, 0.3
set label yname at graph 0, graph 1 offset char -6, 1
set tmargin at screen 1 - (48. + 21 * words(styles)) / height
set bmargin at screen 58. / height
if (logx) set logscale x 2
if (logy) set logscale y
set xtics nomirror ()
do for [tick in ticks] {
	colon = strstrt(tick, ":")
	set xtics add (tick[colon + 1:] (colon ? real(tick[:colon - 1]) : real(tick)))
}
set xrange [:] noextend
set offsets graph 0.03, graph 0.03, graph 0.05, graph 0
set ytics nomirror
set format y "%.0s%c".yunit
if (!logy) set yrange [0:]

set style line 1 lw 1.2 ps 1.3 lc rgb "#a85800" dt 2 pt 6
set style line 2 lw 1.2 ps 0.7 lc rgb "#1a4a7a" dt 1 pt 7
set style line 3 lw 2.5 ps 1.3 lc rgb "#a85800" dt 4 pt 4
set style line 4 lw 2.5 ps 0.7 lc rgb "#1a4a7a" dt 1 pt 5
set style line 5 lw 1.5 ps 1.2 lc rgb "#777777" dt 3 pt 8
set style line 6 lw 1.5 ps 0.7 lc rgb "#777777" dt 5 pt 10
set style line 7 lw 2 ps 0.9 lc rgb "#000000" dt 3 pt 12
set style line 8 lw 2 ps 0.9 lc rgb "#555555" dt 5 pt 9

plot for [i = 1:words(styles)] data index i - 1 using 1:2 \
	with linespoints ls int(word(styles, i)) title columnheader(1)
