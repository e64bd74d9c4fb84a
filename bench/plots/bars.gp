# SPDX-License-Identifier: GPL-2.0
# Ratio bars, a case's name above each.  Set by the caller: data, cases, low,
# high.  Lines of data are: number, name, ratio, text; the first block holds
# what got better, the second what got worse, the third what has no bar.

set encoding utf8
height = 66 + 42 * cases
set terminal svg size 360, height font "sans-serif,14" noenhanced
set datafile separator "\t"
set lmargin 1
set rmargin 1
set tmargin at screen 1 - 6. / height
set bmargin at screen 60. / height
set xlabel "times better" offset 0, 0.4
set logscale x 2
set xrange [low:high]
set yrange [cases + 0.1:0]
unset ytics
unset key
set border 1
set grid xtics lc rgb "#bbbbbb" dt 3
set style textbox opaque noborder margins 0, 0.5
set xtics nomirror ("1" 1)
if (high / low < 60) set xtics add ("0.25" 0.25, "0.5" 0.5)
if (high < 1.9) set xtics add ("0.8" 0.8, "0.9" 0.9, "1.1" 1.1, "1.25" 1.25, "1.5" 1.5)
if (high >= 1.9 && high / low < 60) set xtics add ("2" 2, "4" 4, "8" 8, "16" 16, "32" 32)
if (high / low >= 60) set xtics add ("0.01" 0.01, "0.1" 0.1, "10" 10, "100" 100)
set arrow from 1, graph 0 to 1, graph 1 nohead lw 1.5 lc rgb "black" back

# A bar lies between 1 and its ratio.
left(ratio) = ratio < 1 ? ratio : 1
right(ratio) = ratio > 1 ? ratio : 1

plot data index 0 using 3:1:(left($3)):(right($3)):($1 - 0.55):($1 - 0.18) \
	with boxxyerror fs solid 1 lc rgb "#1a4a7a" title "better", \
     data index 1 using 3:1:(left($3)):(right($3)):($1 - 0.55):($1 - 0.18) \
	with boxxyerror fs pattern 5 lc rgb "#8a3000" title "worse", \
     data using (low):($1 - 0.76):2 \
	with labels left boxed offset char 0.2, 0 title "cases", \
     data using (right($3)):($1 - 0.37):4 \
	with labels left offset char 0.7, 0 title "ratios"
